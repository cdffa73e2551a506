// GEMMs by cuBLASLt. The library is the one that the tensor library has loaded: found by its name, not linked,
// so that everything else of libtrireme_cuda loads without it.
//
// cuBLASLt stores by columns: D by rows is D^T by columns, and D^T = B^T A^T, so its first operand is our second.
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <array>
#include <mutex>
#include <string>

#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

/// The last thing that went wrong on this thread, in words that stay until the next.
CudaError complain(std::string words) {
  static thread_local std::string text;
  text = std::move(words);
  return text.c_str();
}

struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtGetStatusName) status_name = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) check = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) config_get = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  std::string missing;  // empty: all of it is there

  Library() {
    const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
    void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* why = dlerror();
      missing = why == nullptr ? name : why;
      return;
    }
    const auto find = [&](const char* symbol, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, symbol));
      if (function == nullptr) missing = std::string(symbol) + " in " + name;
    };
    find("cublasLtCreate", create);
    find("cublasLtGetVersion", version);
    find("cublasLtGetStatusName", status_name);
    find("cublasLtMatmulDescCreate", desc_create);
    find("cublasLtMatmulDescDestroy", desc_destroy);
    find("cublasLtMatmulDescSetAttribute", desc_set);
    find("cublasLtMatrixLayoutCreate", layout_create);
    find("cublasLtMatrixLayoutDestroy", layout_destroy);
    find("cublasLtMatmulPreferenceCreate", preference_create);
    find("cublasLtMatmulPreferenceDestroy", preference_destroy);
    find("cublasLtMatmulPreferenceSetAttribute", preference_set);
    find("cublasLtMatmulAlgoGetHeuristic", heuristic);
    find("cublasLtMatmulAlgoCheck", check);
    find("cublasLtMatmulAlgoConfigGetAttribute", config_get);
    find("cublasLtMatmul", matmul);
  }
};

const Library& lt() {
  static const Library library;
  return library;
}

CudaError words(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? nullptr : complain(lt().status_name(status));
}

/// One for each GPU, for the life of the process.
CudaError handle_of(cublasLtHandle_t& out) {
  static std::mutex mutex;
  static std::array<cublasLtHandle_t, 64> handles{};
  if (!lt().missing.empty()) return complain("cuBLASLt cannot be used: " + lt().missing);
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return cudaGetErrorString(error);
  if (device >= static_cast<int>(handles.size())) return "more GPUs than there are places for handles";
  const std::scoped_lock lock(mutex);
  cublasLtHandle_t& handle = handles[static_cast<std::size_t>(device)];
  if (handle == nullptr) {
    if (CudaError error = words(lt().create(&handle))) return error;
  }
  out = handle;
  return nullptr;
}

cudaDataType_t data_type(CudaGemm::Type type) {
  switch (type) {
    case CudaGemm::kFloat:
      return CUDA_R_32F;
    case CudaGemm::kHalf:
      return CUDA_R_16F;
    case CudaGemm::kBfloat16:
      return CUDA_R_16BF;
    case CudaGemm::kE4m3:
      return CUDA_R_8F_E4M3;
    case CudaGemm::kE5m2:
      return CUDA_R_8F_E5M2;
  }
  return CUDA_R_32F;
}

std::int32_t epilogue_of(const CudaGemm& p) {
  switch (p.epilogue) {
    case CudaGemm::kPlain:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case CudaGemm::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case CudaGemm::kGelu:
      return p.bias == nullptr ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case CudaGemm::kDgelu:
      return CUBLASLT_EPILOGUE_DGELU;
    case CudaGemm::kBgradA:
      return CUBLASLT_EPILOGUE_BGRADB;  // its B is our A
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

/// The library's description of a GEMM.
class Description {
 public:
  explicit Description(const CudaGemm& p) {
    keep(lt().desc_create(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    if (error_ != nullptr) return;
    set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N});
    set(CUBLASLT_MATMUL_DESC_TRANSB, std::int32_t{p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N});
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p));
    if (p.bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(data_type(p.d_type)));
    }
    if (p.aux != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.aux);
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.aux_stride);
    }
    if (p.b_scale != nullptr) set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(p.b_scale));
    if (p.a_scale != nullptr) set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(p.a_scale));
    if (p.fast) set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
    layout(first_, p.b_type, p.transpose_b ? p.k : p.n, p.transpose_b ? p.n : p.k, p.b_stride);
    layout(second_, p.a_type, p.transpose_a ? p.m : p.k, p.transpose_a ? p.k : p.m, p.a_stride);
    layout(result_, p.d_type, p.n, p.m, p.d_stride);
    layout(added_, p.d_type, p.n, p.m, p.c == nullptr ? p.d_stride : p.c_stride);
  }
  ~Description() {
    if (desc_ != nullptr) lt().desc_destroy(desc_);
    for (cublasLtMatrixLayout_t one : {first_, second_, added_, result_}) {
      if (one != nullptr) lt().layout_destroy(one);
    }
  }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;

  CudaError error() const { return error_; }
  cublasLtMatmulDesc_t desc() const { return desc_; }
  cublasLtMatrixLayout_t first() const { return first_; }
  cublasLtMatrixLayout_t second() const { return second_; }
  cublasLtMatrixLayout_t added() const { return added_; }
  cublasLtMatrixLayout_t result() const { return result_; }

 private:
  void keep(cublasStatus_t status) {
    if (error_ == nullptr) error_ = words(status);
  }
  template <typename Value>
  void set(cublasLtMatmulDescAttributes_t attribute, Value value) {
    keep(lt().desc_set(desc_, attribute, &value, sizeof(value)));
  }
  void layout(cublasLtMatrixLayout_t& out, CudaGemm::Type type, std::int64_t rows, std::int64_t columns,
              std::int64_t stride) {
    keep(lt().layout_create(&out, data_type(type), static_cast<std::uint64_t>(rows),
                            static_cast<std::uint64_t>(columns), stride));
  }

  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, added_ = nullptr, result_ = nullptr;
  CudaError error_ = nullptr;
};

cublasLtMatmulAlgo_t algorithm_of(const CudaGemmAlgorithm& from) {
  cublasLtMatmulAlgo_t algorithm;
  static_assert(sizeof(algorithm.data) == sizeof(from.words));
  for (int i = 0; i < 8; ++i) algorithm.data[i] = from.words[i];
  return algorithm;
}

template <typename Number>
std::int32_t config(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  Number number = 0;
  std::size_t written = 0;
  if (lt().config_get(&algorithm, attribute, &number, sizeof(number), &written) != CUBLAS_STATUS_SUCCESS) return -1;
  return static_cast<std::int32_t>(number);
}

CudaGemmAlgorithm describe(const cublasLtMatmulHeuristicResult_t& result) {
  CudaGemmAlgorithm out;
  for (int i = 0; i < 8; ++i) out.words[i] = result.algo.data[i];
  out.workspace = static_cast<std::int64_t>(result.workspaceSize);
  out.algorithm = config<std::int32_t>(result.algo, CUBLASLT_ALGO_CONFIG_ID);
  out.tile = config<std::uint32_t>(result.algo, CUBLASLT_ALGO_CONFIG_TILE_ID);
  out.split_k = config<std::int32_t>(result.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
  out.reduction = config<std::uint32_t>(result.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
  out.swizzle = config<std::uint32_t>(result.algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING);
  out.custom = config<std::uint32_t>(result.algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION);
  out.stages = config<std::uint32_t>(result.algo, CUBLASLT_ALGO_CONFIG_STAGES_ID);
  out.inner = config<std::uint16_t>(result.algo, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID);
  out.cluster = config<std::uint16_t>(result.algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID);
  return out;
}

class Preference {
 public:
  Preference(const CudaGemm& p, std::int64_t workspace) {
    keep(lt().preference_create(&preference_));
    if (error_ != nullptr) return;
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace));
    // Parts of a sum are added up in float: in the result's own type only where that is float.
    std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (p.d_type == CudaGemm::kFloat) {
      reductions |= std::uint32_t{CUBLASLT_REDUCTION_SCHEME_INPLACE} | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    }
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      set(attribute, static_cast<std::uint32_t>(p.alignment));
    }
  }
  ~Preference() {
    if (preference_ != nullptr) lt().preference_destroy(preference_);
  }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  CudaError error() const { return error_; }
  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  void keep(cublasStatus_t status) {
    if (error_ == nullptr) error_ = words(status);
  }
  template <typename Value>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, Value value) {
    keep(lt().preference_set(preference_, attribute, &value, sizeof(value)));
  }
  cublasLtMatmulPreference_t preference_ = nullptr;
  CudaError error_ = nullptr;
};

}  // namespace

CudaError tuning_key(const char** card, std::uint64_t* library) {
  if (!lt().missing.empty()) return complain("cuBLASLt cannot be used: " + lt().missing);
  int device = 0;
  static thread_local cudaDeviceProp properties;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  *card = properties.name;
  *library = lt().version();
  return nullptr;
}

CudaError gemm_algorithms(const CudaGemm& p, std::int64_t workspace, CudaGemmAlgorithm* algorithms, int most,
                          int* found) {
  constexpr int kMost = 64;
  *found = 0;
  cublasLtHandle_t handle = nullptr;
  if (CudaError error = handle_of(handle)) return error;
  const Description description(p);
  if (description.error() != nullptr) return description.error();
  const Preference preference(p, workspace);
  if (preference.error() != nullptr) return preference.error();
  std::array<cublasLtMatmulHeuristicResult_t, kMost> results{};
  int count = 0;
  const cublasStatus_t status =
      lt().heuristic(handle, description.desc(), description.first(), description.second(), description.added(),
                     description.result(), preference.get(), most < kMost ? most : kMost, results.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return nullptr;  // none
  if (CudaError error = words(status)) return error;
  for (int i = 0; i < count; ++i) {
    if (results[static_cast<std::size_t>(i)].state != CUBLAS_STATUS_SUCCESS) continue;
    algorithms[(*found)++] = describe(results[static_cast<std::size_t>(i)]);
  }
  return nullptr;
}

CudaError gemm_fits(const CudaGemm& p, const CudaGemmAlgorithm& chosen, bool* fits) {
  *fits = false;
  cublasLtHandle_t handle = nullptr;
  if (CudaError error = handle_of(handle)) return error;
  const Description description(p);
  if (description.error() != nullptr) return description.error();
  const cublasLtMatmulAlgo_t algorithm = algorithm_of(chosen);
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status = lt().check(handle, description.desc(), description.first(), description.second(),
                                           description.added(), description.result(), &algorithm, &result);
  *fits = status == CUBLAS_STATUS_SUCCESS && static_cast<std::int64_t>(result.workspaceSize) <= chosen.workspace;
  return nullptr;
}

CudaError gemm(const CudaGemm& p, const CudaGemmAlgorithm& chosen, void* workspace, CudaStream stream) {
  cublasLtHandle_t handle = nullptr;
  if (CudaError error = handle_of(handle)) return error;
  const Description description(p);
  if (description.error() != nullptr) return description.error();
  const cublasLtMatmulAlgo_t algorithm = algorithm_of(chosen);
  const float one = 1, beta = p.add ? 1 : 0;
  return words(lt().matmul(handle, description.desc(), &one, p.b, description.first(), p.a, description.second(), &beta,
                           p.c == nullptr ? p.d : p.c, description.added(), p.d, description.result(), &algorithm,
                           workspace, static_cast<std::size_t>(chosen.workspace), static_cast<cudaStream_t>(stream)));
}

}  // namespace trireme::kernels::gpu
