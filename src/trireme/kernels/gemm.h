// kernels/gemm.h -- GEMMs on a GPU by cuBLASLt, with what comes before and after them in the same pass.
//
// Of the plans that the library offers for a shape the fastest is found by timing them when the shape is first met, and
// remembered (choices.h); so is whether a bias's gradient or GELU goes into the GEMM or into a pass of its own. What
// does not fit (other types, odd strides) goes to the tensor library. Timing waits for the GPU, so a step that is
// recorded must have run before. On the CPU all of these are the tensor library's.
// Depends on: base.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <string>

#include "trireme/kernels/tuning.h"

namespace trireme::kernels {

/// Of the whole process: false leaves GEMMs to the tensor library. True at the start.
void set_tuned_products(bool on);
bool tuned_products();

/// Takes over what a file says was chosen; no such file: nothing. A file of another card or library is passed over, and
/// the log says so.
void read_choices(const std::filesystem::path& path);
/// Writes the file where something was chosen since it was last read or written. Cheap where not.
void write_choices(const std::filesystem::path& path);
/// All that was chosen so far, as in the file; empty where no GPU was used.
std::string chosen_text();

/// What else one pass does; all of it of the result's type.
struct GemmExtras {
  enum class Kind : std::uint8_t {
    kNone,
    kBias,          ///< bias [n] is added
    kGelu,          ///< GELU by tanh of the sum with the bias (undefined: none); what enters it goes to `inner`
    kGeluSlope,     ///< the result times GELU's slope at `inner`
    kGeluSlopeSum,  ///< and `bias` [n] becomes the sum of its rows, rounded to the result's type
    kSum,           ///< `bias` [m] becomes the sum of a over what is summed: gradients of a bias beside the weight's
  };
  Kind kind = Kind::kNone;
  at::Tensor bias = {}, inner = {};
  at::Tensor onto = {};                   ///< [m, n]: what is added to, where the result goes elsewhere
  at::Tensor a_scale = {}, b_scale = {};  ///< float [1], of 8-bit floats
  bool fast = false;                      ///< 8-bit floats: sums as the tensor cores make them
};

/// Whether the library has a plan: out [m, n] = a [m, k] b [k, n], each by rows or by columns. Times the plans where
/// it is asked for the first time, and then writes `out` unless it is to be added to.
bool takes_product(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const GemmExtras& extras = {},
                   bool add = false);
/// out = a b, or out += a b. An InternalError where takes_product() says no.
void fused_product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add, const GemmExtras& extras);

/// a b, of their type.
at::Tensor product_of(const at::Tensor& a, const at::Tensor& b);
/// out = a b, or out += a b, by whoever can; 16-bit a and b may have a float result.
void product_into(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add = false);
/// x [n, in] weight^T + bias, weight [out, in]; plus `onto` [n, out], where in the same pass rounded once. `bias` and
/// `onto` may be undefined.
at::Tensor linear_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& onto = {});

/// GELU(x weight^T + bias) by tanh, and what entered it.
struct GeluLinear {
  at::Tensor inner, active;
};
GeluLinear gelu_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
/// (dy weight) times GELU's slope at `inner`, weight [width, inner]. Where they are defined, `active` becomes GELU of
/// `inner` again, and `dbias` (float) the sum of the result's rows.
at::Tensor gelu_linear_back(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor& inner, at::Tensor& active,
                            at::Tensor& dbias);
/// Whether the sum of dy's rows is best made within dy^T x: then ask fused_product for kSum. Beside a gradient of 16
/// bits that sum is rounded to them.
bool sums_in_product(const at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& x);

/// One of several ways to the same numbers, which writes `outputs` and nothing else that is read again.
struct Variant {
  const char* name;
  std::function<void()> run;
};
/// The name of the fastest; the first is the plain one, which can always run. Others are left out where they throw, or
/// where `outputs` differ from the plain way's by more than roundings. Timed at the first call for a key.
std::string fastest_way(const std::string& key, std::initializer_list<Variant> ways,
                        const std::function<std::vector<at::Tensor>()>& outputs);

/// Microseconds of each way, the first of which is taken whatever they are; nothing where they were timed before, or
/// while a step is recorded.
std::map<std::string, double> time_once(const std::string& key, std::initializer_list<Variant> ways);

}  // namespace trireme::kernels
