"""A policy as an ONNX graph, built node by node: no exporter, no tracing.

    observation → Cast(float64) → Sub → Div → Cast(float32) → Clip → (Gemm → Tanh)* → Gemm → Max → Min → action

Observations [batch, obs] and actions [batch, act] are float32. The normaliser works in float64, as in training: an
observation that hardly varies about a large value has no digits left in float32 once the value is subtracted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trpl.messages import needs

with needs("onnx"):
    import onnx
    from onnx import TensorProto, helper, numpy_helper

from trpl.errors import ExportError
from trpl.integrations.export import Deployable

OPSET, IR_VERSION = 17, 8  # read by onnxruntime 1.12 and later
LARGEST_SIZE = 1_000_000  # of an observation
NODES = {"tanh": "Tanh", "relu": "Relu", "elu": "Elu"}
OPERATORS = frozenset({*NODES.values(), "Cast", "Sub", "Div", "Clip", "Gemm", "Max", "Min"})


class Graph:
    """Nodes in a row, each on the result of the one before."""

    def __init__(self, start: str) -> None:
        self.last, self.nodes, self.constants = start, [], []

    def add(self, kind: str, *constants: Any, **attributes: Any) -> None:
        """Add `kind(last, *constants)`; None stands for an input left out."""
        name = f"{kind.lower()}{len(self.nodes)}"
        inputs = [self.last]
        for i, value in enumerate(constants):
            self.constants.append(numpy_helper.from_array(np.asarray(value), f"{name}/{i}"))
            inputs.append(f"{name}/{i}")
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        self.last = name

    def finish(self, name: str) -> None:
        self.nodes[-1].output[0] = name


def to_model(policy: Deployable) -> onnx.ModelProto:
    """Return the graph of a policy, checked."""
    graph = Graph("observation")
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
    graph.finish("action")
    described = helper.make_graph(
        graph.nodes,
        "policy",
        [helper.make_tensor_value_info("observation", TensorProto.FLOAT, ["batch", policy.obs_size])],
        [helper.make_tensor_value_info("action", TensorProto.FLOAT, ["batch", policy.action_size])],
        graph.constants,
        doc_string="Noise-free policy: raw observations in, mean actions out; the observation normaliser is inside.",
    )
    model = helper.make_model(
        described, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="trpl"
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def write(policy: Deployable, path: str | Path) -> None:
    Path(path).write_bytes(to_model(policy).SerializeToString())


def session(path: str | Path) -> Any:
    """Make an onnxruntime session for one robot: one thread, in order, no waiting threads that spin."""
    with needs("onnx"):
        import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 4  # errors are raised; they need not be printed too
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"], enable_fallback=0)


def load(path: str | Path) -> Any:
    """Return the exported policy as a function of observations [batch, obs]; a file of another kind is refused.

    Before any of it is run, the graph is held against what `to_model` writes: its operators, one input, one output, and
    all numbers inside the file, none in files beside it.
    """
    try:
        obs_size = _check_kind(onnx.load(str(path), load_external_data=False))
        run = session(path).run
        (action,) = run(["action"], {"observation": np.zeros((1, obs_size), np.float32)})
    except ExportError as error:
        raise ExportError(f"{path} is not a policy as .onnx: {error}") from error
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # protobuf, onnx and onnxruntime have a dozen for what is not a model
        reason = str(error).splitlines()[0][:200] if str(error) else ""
        raise ExportError(f"{path} is not a policy as .onnx: {type(error).__name__}: {reason}") from error
    if action.ndim != 2 or len(action) != 1:
        raise ExportError(f"{path} is not a policy as .onnx: one observation gives {action.shape}")
    return lambda observations: run(["action"], {"observation": observations})[0]


def _check_kind(model: onnx.ModelProto) -> int:
    """Return the size of observations of a model of the kind `to_model` makes."""
    graph = model.graph
    if [value.name for value in graph.input] != ["observation"] or [value.name for value in graph.output] != ["action"]:
        raise ExportError("it does not go from `observation` to `action`")
    foreign = sorted({node.op_type for node in graph.node if node.op_type not in OPERATORS or node.domain})
    if foreign or model.functions:
        raise ExportError(f"it has operators that no policy has: {', '.join(foreign)[:80]}")
    if any(value.data_location == TensorProto.EXTERNAL for value in graph.initializer) or graph.sparse_initializer:
        raise ExportError("some of its numbers lie in another file")
    shape = graph.input[0].type.tensor_type.shape.dim
    if len(shape) != 2 or not 0 < shape[1].dim_value <= LARGEST_SIZE:
        raise ExportError("its input is not a batch of vectors")
    return shape[1].dim_value
