"""A policy as an ONNX graph, built node by node without an exporter or tracing.

    observation → Cast(float64) → Sub → Div → Cast(float32) → Clip → (Gemm → Tanh)* → Gemm → Max → Min → action

Observations [batch, obs] and actions [batch, act] of a box are float32; classes are int64 and bits int8, by ArgMax and
Greater, and hybrid actions are several outputs. The normaliser works in float64, as in training: an observation with
small variation about a large value would lose it in float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trpl.messages import needs

with needs("onnx"):
    import onnx
    from onnx import TensorProto, helper, numpy_helper

from trpl.errors import ExportError, MissingExtraError
from trpl.integrations.export import Deployable, mode_layers
from trpl.policies.heads import BernoulliHead, BetaHead, CategoricalHead, GaussianHead, Head, ProductHead

OPSET, IR_VERSION = 17, 8  # read by onnxruntime 1.12 and later
LARGEST_SIZE = 1_000_000  # of an observation
NODES = {"tanh": "Tanh", "relu": "Relu", "elu": "Elu"}
OPERATORS = frozenset(
    {*NODES.values(), "Cast", "Sub", "Div", "Clip", "Gemm", "Max", "Min", "Slice", "ArgMax", "Unsqueeze", "Concat"}
    | {"Add", "Mul", "Greater", "Reshape", "Softplus"}
)


class Graph:
    """A chain of nodes, each applied to the previous result."""

    def __init__(self, start: str) -> None:
        self.last, self.nodes, self.constants = start, [], []

    def add(self, kind: str, *constants: Any, others: tuple[str, ...] = (), **attributes: Any) -> str:
        """Add `kind(last, *others, *constants)`; `others` are results of earlier nodes."""
        name = f"{kind.lower()}{len(self.nodes)}"
        inputs = [self.last, *others]
        for i, value in enumerate(constants):
            self.constants.append(numpy_helper.from_array(np.asarray(value), f"{name}/{i}"))
            inputs.append(f"{name}/{i}")
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        self.last = name
        return name

    def cut(self, source: str, start: int, stop: int) -> str:
        """Slice columns of an earlier result."""
        self.last = source
        return self.add("Slice", np.array([start]), np.array([stop]), np.array([1]))

    def finish(self, name: str) -> None:
        """Name the last result as an output of the graph."""
        self.nodes[-1].output[0] = name


def add_action(graph: Graph, source: str, head: Head, start: int = 0) -> int:
    """Add the nodes that convert the last layer's columns from `start` on to an action; return the next column."""
    stop = start + sum(ending.size for ending in mode_layers(head))
    if isinstance(head, CategoricalHead):
        _add_classes(graph, source, head, start)
        return stop
    graph.cut(source, start, stop)
    if isinstance(head, BernoulliHead):
        graph.add("Greater", np.float32(0.0))
        graph.add("Cast", to=TensorProto.INT8)
        graph.add("Reshape", np.array([-1, *head.shape], np.int64))
    else:
        assert isinstance(head, BetaHead | GaussianHead)
        _add_box(graph, head)
    return stop


def _add_classes(graph: Graph, source: str, head: CategoricalHead, start: int) -> None:
    """Add the most likely class of each component of a discrete action."""
    columns = []
    for size, first in zip(head.sizes, head.starts, strict=True):
        graph.cut(source, start, start + size)
        graph.add("ArgMax", axis=-1, keepdims=1)
        columns.append(graph.add("Add", np.array([first], np.int64)))
        start += size
    graph.last = columns[0]
    if len(columns) > 1:
        graph.add("Concat", others=tuple(columns[1:]), axis=-1)
    graph.add("Reshape", np.array([-1, *(head.shape or ())], np.int64))


def _add_box(graph: Graph, head: BetaHead | GaussianHead) -> None:
    """Add the mean of a Beta or Gaussian, and its map to the box of actions."""
    if isinstance(head, BetaHead):
        size = head.action_size
        graph.add("Softplus")
        above = graph.add("Add", np.float32(1e-30))
        alpha = graph.cut(above, 0, size)
        graph.cut(above, size, 2 * size)
        total = graph.add("Add", others=(alpha,))
        graph.last = alpha
        graph.add("Div", others=(total,))
    if head.actions is not None:
        if head.actions.squash:
            graph.add("Tanh")
        graph.add("Mul", head.actions.gain)
        graph.add("Add", head.actions.offset)
        if head.actions.low is not None:
            graph.add("Max", head.actions.low)
            graph.add("Min", head.actions.high)


def output_names(head: Head | None) -> list[str]:
    """Name the outputs: `action`, or for hybrid actions `action.NAME` or `action.0`, `action.1`, ... for each part."""
    if not isinstance(head, ProductHead):
        return ["action"]
    return [f"action.{name}" for name in head.names or range(len(head.parts))]


def _output(name: str, head: Head | None, size: int) -> Any:
    if isinstance(head, CategoricalHead):
        return helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", *(head.shape or ())])
    if isinstance(head, BernoulliHead):
        return helper.make_tensor_value_info(name, TensorProto.INT8, ["batch", *head.shape])
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])


def _add_network(graph: Graph, policy: Deployable) -> None:
    """Add the normaliser, the layers, and the limits of a policy without a head."""
    if policy.shift is not None:
        graph.add("Cast", to=TensorProto.DOUBLE)
        graph.add("Sub", np.asarray(policy.shift, np.float64))
        graph.add("Div", np.asarray(policy.scale, np.float64))
        graph.add("Cast", to=TensorProto.FLOAT)
    if policy.clip is not None:
        graph.add("Clip", np.float32(-policy.clip), np.float32(policy.clip))
    for weight, bias, activation in policy.layers:
        graph.add("Gemm", weight, bias)
        if activation in NODES:
            graph.add(NODES[activation])
    if policy.low is not None:
        graph.add("Max", policy.low)
        graph.add("Min", policy.high)


def to_model(policy: Deployable) -> onnx.ModelProto:
    """Make and check the graph of a policy."""
    graph = Graph("observation")
    _add_network(graph, policy)
    parts = policy.head.parts if isinstance(policy.head, ProductHead) else (policy.head,)
    names, source, column = output_names(policy.head), graph.last, 0
    for name, part in zip(names, parts, strict=True):
        if part is not None:
            column = add_action(graph, source, part, column)
        graph.finish(name)
    described = helper.make_graph(
        graph.nodes,
        "policy",
        [helper.make_tensor_value_info("observation", TensorProto.FLOAT, ["batch", policy.obs_size])],
        [
            _output(name, part, policy.action_size if part is None else part.action_size)
            for name, part in zip(names, parts, strict=True)
        ],
        graph.constants,
        doc_string="Noise-free policy: raw observations in, the environment's actions out; the normaliser is inside.",
    )
    model = helper.make_model(
        described, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="trpl"
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def write(policy: Deployable, path: str | Path) -> None:
    """Write a policy as an .onnx file."""
    Path(path).write_bytes(to_model(policy).SerializeToString())


def session(path: str | Path) -> Any:
    """Make an onnxruntime session for deployment: one thread, sequential, without spinning threads."""
    with needs("onnx"):
        import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 4  # errors are raised, so they need not be printed
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"], enable_fallback=0)


def load(path: str | Path) -> Any:
    """Load an exported policy as a function of observations [batch, obs]; refuse any other graph.

    Before it is run, the graph is compared with the output of `to_model`: its operators, inputs and outputs, and that
    all numbers are inside the file.
    """
    try:
        obs_size, names = _check_kind(onnx.load(str(path), load_external_data=False))
        run = session(path).run
        actions = run(None, {"observation": np.zeros((1, obs_size), np.float32)})
    except ExportError as error:
        raise ExportError(f"{path} is not a policy as .onnx: {error}") from error
    except MissingExtraError:
        raise
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # protobuf, onnx and onnxruntime raise many exceptions for invalid models
        reason = str(error).splitlines()[0][:200] if str(error) else ""
        raise ExportError(f"{path} is not a policy as .onnx: {type(error).__name__}: {reason}") from error
    if any(not action.ndim or len(action) != 1 for action in actions):
        raise ExportError(f"{path} is not a policy as .onnx: one observation gives {[a.shape for a in actions]}")
    single = names == ["action"]

    def act(observations: np.ndarray) -> Any:
        found = run(None, {"observation": observations})
        return found[0] if single else tuple(found)

    return act


def _check_kind(model: onnx.ModelProto) -> tuple[int, list[str]]:
    """Check that `to_model` could have made a model; return its observation size and the names of its outputs."""
    graph = model.graph
    names = [value.name for value in graph.output]
    whole = names == ["action"] or (names and all(name.startswith("action.") for name in names))
    if [value.name for value in graph.input] != ["observation"] or not whole:
        raise ExportError("it does not go from `observation` to `action`")
    foreign = sorted({node.op_type for node in graph.node if node.op_type not in OPERATORS or node.domain})
    if foreign or model.functions:
        raise ExportError(f"it has operators that no policy has: {', '.join(foreign)[:80]}")
    if any(value.data_location == TensorProto.EXTERNAL for value in graph.initializer) or graph.sparse_initializer:
        raise ExportError("some of its numbers lie in another file")
    shape = graph.input[0].type.tensor_type.shape.dim
    if len(shape) != 2 or not 0 < shape[1].dim_value <= LARGEST_SIZE:
        raise ExportError("its input is not a batch of vectors")
    return shape[1].dim_value, names
