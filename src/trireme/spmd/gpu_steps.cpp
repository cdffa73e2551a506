#include "trireme/spmd/gpu_steps.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>

#include <algorithm>

#include "trireme/device/cuda.h"

namespace trireme::spmd {
namespace {

constexpr int kEagerSteps = 3;

}  // namespace

Values on_device(const Values& values, c10::Device device) {
  Values moved;
  for (const at::Tensor& value : values) {
    if (!value.defined()) {
      moved.emplace_back();
      continue;
    }
    const bool is_image = value.dim() == 4 && value.is_floating_point();
    moved.push_back(
        value.to(device).contiguous(is_image ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous));
  }
  return moved;
}

GpuSteps::GpuSteps(const pg::Graph& both, Executor& executor, const Values& start, c10::Device device, bool cuda_graph)
    : executor_(executor),
      start_(start),
      device_(device),
      captures_(cuda_graph &&
                std::ranges::none_of(both.ops, [](const pg::Op& op) { return op.function == "dropout"; })) {
  at::globalContext().setBenchmarkCuDNN(true);
}

GpuSteps::~GpuSteps() {
  captured_ = {};
  if (graph_) device::cuda_runtime().destroy_graph(graph_);
}

StepResult GpuSteps::step() {
  if (captures_ && !graph_ && eager_ >= kEagerSteps) {
    const device::CudaRuntime& runtime = device::cuda_runtime();
    device::synchronise(device_);
    device::check_cuda(runtime.begin_capture(&graph_), "capturing a step of a graph");
    captured_ = executor_.step(start_);
    device::check_cuda(runtime.end_capture(graph_, true), "capturing a step of a graph");
  }
  StepResult result;
  if (graph_) {
    const device::CudaRuntime& runtime = device::cuda_runtime();
    device::check_cuda(runtime.launch_graph(graph_, runtime.current_stream()), "replaying a step of a graph");
    result = captured_;
  } else {
    result = executor_.step(start_);
    ++eager_;
  }
  device::synchronise(device_);
  if (result.loss_value.defined()) result.loss = result.loss_value.item<double>();  // else it is known already
  return result;
}

}  // namespace trireme::spmd
