// Attention by cuDNN's graphs. The library is the one that the tensor library has loaded: found by its name, not
// linked. NVIDIA's frontend writes the graphs; it is large, and this is the one file that includes it. Without its
// headers there is nothing here but the answer that they were missing: cmake/TriremeTorch.cmake.
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <array>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "trireme/kernels/cuda_plugin/functions.h"

#ifdef TRIREME_CUDNN
#include <cudnn.h>
#include <cudnn_frontend.h>

void* cudnn_frontend::cudnn_dlhandle = nullptr;  // where the frontend looks for the library's functions

namespace trireme::kernels::gpu {
namespace {

namespace fe = cudnn_frontend;
using Graph = fe::graph::Graph;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Strides = const std::int64_t (&)[3];

/// The last thing that went wrong on this thread, in words that stay until the next.
CudaError complain(std::string words) {
  static thread_local std::string text;
  text = std::move(words);
  return text.c_str();
}
CudaError words(fe::error_t status) { return status.is_good() ? nullptr : complain(status.get_message()); }

// ---- handles: one for each thread and GPU, since a handle belongs to one stream at a time

struct Pool {
  static constexpr int kGpus = 64;
  std::mutex mutex;
  std::array<std::vector<cudnnHandle_t>, kGpus> idle;
};
Pool& pool() {
  static Pool* const one = new Pool;  // threads may end after statics do
  return *one;
}

/// A thread's handles, which go to the next thread when it ends.
struct Held {
  std::array<cudnnHandle_t, Pool::kGpus> handles{};
  ~Held() {
    const std::scoped_lock lock(pool().mutex);
    for (std::size_t gpu = 0; gpu < handles.size(); ++gpu) {
      if (handles[gpu] != nullptr) pool().idle[gpu].push_back(handles[gpu]);
    }
  }
};

CudaError handle_of(cudnnHandle_t& out) {
  static thread_local Held held;
  int gpu = 0;
  if (const cudaError_t error = cudaGetDevice(&gpu); error != cudaSuccess) return cudaGetErrorString(error);
  if (gpu >= Pool::kGpus) return "more GPUs than there are places for handles";
  cudnnHandle_t& handle = held.handles[static_cast<std::size_t>(gpu)];
  if (handle == nullptr) {
    const std::scoped_lock lock(pool().mutex);
    auto& idle = pool().idle[static_cast<std::size_t>(gpu)];
    if (!idle.empty()) {
      handle = idle.back();
      idle.pop_back();
    } else if (const cudnnStatus_t status = fe::detail::create_handle(&handle); status != CUDNN_STATUS_SUCCESS) {
      handle = nullptr;
      return complain(std::string("no handle of cuDNN: ") + fe::detail::get_error_string(status));
    }
  }
  out = handle;
  return nullptr;
}

/// Plans are made of kernels that may have to be compiled and loaded, which a capture forbids unless it is told to
/// look away.
class Uncaptured {
 public:
  Uncaptured() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~Uncaptured() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  Uncaptured(const Uncaptured&) = delete;
  Uncaptured& operator=(const Uncaptured&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// ---- graphs

enum Name : std::int64_t { kQ = 1, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv };

/// [batch, heads, rows, size], from strides of batch, row and head.
struct Shape {
  std::int64_t batch, heads, rows, size;

  template <typename Attributes>
  void give(Attributes& tensor, Name name, Strides strides) const {
    tensor.set_uid(name).set_dim({batch, heads, rows, size}).set_stride({strides[0], strides[2], strides[1], 1});
  }
  Tensor input(Graph& graph, Name name, Strides strides) const {
    fe::graph::Tensor_attributes tensor;
    give(tensor, name, strides);
    return graph.tensor(tensor);
  }
  void output(const Tensor& tensor, Name name, Strides strides) const {
    tensor->set_output(true);
    give(*tensor, name, strides);
  }
};

/// float [batch, heads, rows, 1], contiguous.
template <typename Attributes>
void give_lse(Attributes& tensor, const CudaAttention& c) {
  tensor.set_uid(kLse)
      .set_dim({c.batch, c.heads, c.queries, 1})
      .set_stride({c.heads * c.queries, c.queries, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
}

template <typename Attributes>
void mask(Attributes& attributes, const CudaAttention& c) {
  attributes.set_attn_scale(static_cast<float>(c.scale));
  if (!c.causal) return;
  attributes.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
}

void describe(Graph& graph, const CudaAttention& c, Element element, CudnnPass pass) {
  graph.set_io_data_type(element == Element::kHalf ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const Shape queries{c.batch, c.heads, c.queries, c.head_dim}, keys{c.batch, c.key_heads, c.keys, c.head_dim};
  const Tensor q = queries.input(graph, kQ, c.q_strides), k = keys.input(graph, kK, c.k_strides),
               v = keys.input(graph, kV, c.v_strides);
  if (pass == CudnnPass::kForward) {
    auto attributes = fe::graph::SDPA_attributes()
                          .set_name("attention")
                          .set_generate_stats(true)
                          .set_implementation(fe::AttentionImplementation_t::COMPOSITE);
    mask(attributes, c);
    const auto [out, lse] = graph.sdpa(q, k, v, attributes);
    queries.output(out, kOut, c.out_strides);
    lse->set_output(true);
    give_lse(*lse, c);
    return;
  }
  const Tensor out = queries.input(graph, kOut, c.out_strides), dout = queries.input(graph, kDout, c.dout_strides);
  fe::graph::Tensor_attributes lse;
  give_lse(lse, c);
  auto attributes = fe::graph::SDPA_backward_attributes()
                        .set_name("attention_backward")
                        .set_deterministic_algorithm(pass == CudnnPass::kFixedBackward);
  mask(attributes, c);
  const auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, out, dout, graph.tensor(lse), attributes);
  queries.output(dq, kDq, c.dq_strides);
  keys.output(dk, kDk, c.dk_strides);
  keys.output(dv, kDv, c.dv_strides);
}

struct Plan {
  Graph graph;
  CudnnPass pass;
};

/// From the library's first choice to its last resort: the first that it can build.
fe::error_t build(Graph& graph, cudnnHandle_t handle) {
  return graph.build(handle, {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
}

}  // namespace

CudaError cudnn_ready() {
  static const std::string missing = [] {
    const std::string name = "libcudnn.so." + std::to_string(CUDNN_MAJOR);
    fe::cudnn_dlhandle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (fe::cudnn_dlhandle != nullptr) return std::string();
    const char* why = dlerror();
    return why == nullptr ? name : std::string(why);
  }();
  return missing.empty() ? nullptr : missing.c_str();
}

CudaError cudnn_plan(const CudaAttention& call, Element element, CudnnPass pass, void** out,
                     std::int64_t* workspace) try {
  if (CudaError error = cudnn_ready()) return error;
  const Uncaptured uncaptured;
  cudnnHandle_t handle = nullptr;
  if (CudaError error = handle_of(handle)) return error;
  auto plan = std::make_unique<Plan>();
  plan->pass = pass;
  describe(plan->graph, call, element, pass);
  if (CudaError error = words(build(plan->graph, handle))) return error;
  if (CudaError error = words(plan->graph.get_workspace_size(*workspace))) return error;
  *out = plan.release();
  return nullptr;
} catch (const std::exception& error) {
  return complain(error.what());
}

CudaError cudnn_run(const void* opaque, const CudaAttention& c, void* workspace, CudaStream stream) try {
  const Plan& plan = *static_cast<const Plan*>(opaque);
  cudnnHandle_t handle = nullptr;
  if (CudaError error = handle_of(handle)) return error;
  if (const cudnnStatus_t status = fe::detail::set_stream(handle, static_cast<cudaStream_t>(stream));
      status != CUDNN_STATUS_SUCCESS) {
    return complain(std::string("cuDNN's stream: ") + fe::detail::get_error_string(status));
  }
  // The library takes all as void*, and writes what is an output.
  const auto read = [](const void* data) { return const_cast<void*>(data); };
  std::unordered_map<std::int64_t, void*> tensors{{kQ, read(c.q)}, {kK, read(c.k)}, {kV, read(c.v)}, {kLse, c.lse}};
  if (plan.pass == CudnnPass::kForward) {
    tensors.emplace(kOut, c.out);
  } else {
    tensors.insert({{kOut, read(c.out_read)}, {kDout, read(c.dout)}, {kDq, c.dq}, {kDk, c.dk}, {kDv, c.dv}});
  }
  return words(plan.graph.execute(handle, tensors, workspace));
} catch (const std::exception& error) {
  return complain(error.what());
}

}  // namespace trireme::kernels::gpu

#else

namespace trireme::kernels::gpu {

CudaError cudnn_ready() { return "libtrireme_cuda was built without cuDNN's headers (scripts/setup fetches them)"; }
CudaError cudnn_plan(const CudaAttention&, Element, CudnnPass, void**, std::int64_t*) { return cudnn_ready(); }
CudaError cudnn_run(const void*, const CudaAttention&, void*, CudaStream) { return cudnn_ready(); }

}  // namespace trireme::kernels::gpu

#endif
