#include "trireme/kernels/cross_entropy.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "trireme/kernels/arguments.h"
#include "trireme/kernels/column_sums.h"
#include "trireme/kernels/cpu/cross_entropy_table.h"
#include "trireme/kernels/cpu/pick.h"
#include "trireme/kernels/cuda.h"

namespace trireme::kernels {
namespace {

constexpr Compiled<CrossEntropyTable> kCompiledCrossEntropy{kCrossEntropyPlain, kCrossEntropyV3, kCrossEntropyV4,
                                                            kCrossEntropyV4Bf16};

}  // namespace

void cross_entropy(const CrossEntropyCall& call, const CrossEntropy& options) {
  const Arguments arguments("cross_entropy");
  const Rows logits = arguments.rows(call.logits, "logits");
  if (logits.rows > 0 && logits.width == 0) {
    arguments.refuse(fmt::format("{} has no classes", describe(call.logits, "logits")));
  }
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1)) {
    arguments.refuse(fmt::format("label_smoothing is {}, but is a share of 1", options.label_smoothing),
                     "set it between 0 and 1");
  }
  const CrossEntropyLoop loop{
      .logits = logits.data,
      .targets = arguments.numbers(call.targets, "targets", logits.rows),
      .scale = arguments.sums(call.gradient_scale, "gradient_scale", logits.rows, logits.element),
      .losses = arguments.sums(call.losses, "losses", logits.rows, logits.element),
      .z_losses = arguments.sums(call.z_losses, "z_losses", logits.rows, logits.element),
      .lse = arguments.sums(call.lse, "lse", logits.rows, logits.element),
      .stride = logits.stride,
      .vocabulary = logits.width,
      .ignore = options.ignore,
      .label_smoothing = options.label_smoothing,
      .z_loss = options.z_loss};
  if (loop.losses == nullptr) arguments.refuse("losses is undefined, but must hold a number for each row");
  if (arguments.on_gpu()) {
    return check_cuda(cuda().cross_entropy(loop, logits.element, logits.rows, cuda_stream()), "cross_entropy");
  }
  for (std::int64_t row = 0; row < logits.rows; ++row) {
    const std::int64_t target = loop.targets[row];
    if ((target < 0 || target >= logits.width) && target != options.ignore) {
      arguments.refuse(fmt::format("targets[{}] is {}, but {} has classes 0 to {}", row, target,
                                   describe(call.logits, "logits"), logits.width - 1),
                       fmt::format("targets that take no part are {}", options.ignore));
    }
  }
  const auto rows = kCompiledCrossEntropy.pick().rows[static_cast<int>(logits.element)];
  at::parallel_for(0, logits.rows, rows_worth_a_thread(logits.width * 4),
                   [&](std::int64_t begin, std::int64_t end) { rows(loop, begin, end); });
}

void cross_entropy_slice_values(const CrossEntropySliceValues& call) {
  const Arguments arguments("cross_entropy_slice_values");
  const Rows logits = arguments.rows(call.logits, "logits");
  const CrossEntropySlice slice{.logits = logits.data,
                                .targets = arguments.numbers(call.targets, "targets", logits.rows),
                                .scale = nullptr,
                                .lse = arguments.sums(call.lse, "lse", logits.rows, logits.element),
                                .hits = arguments.sums(call.hits, "hits", logits.rows, logits.element),
                                .sums = arguments.sums(call.sums, "sums", logits.rows, logits.element),
                                .stride = logits.stride,
                                .classes = logits.width,
                                .vocabulary = logits.width,
                                .label_smoothing = 0,
                                .z_loss = 0};
  if (slice.lse == nullptr || slice.hits == nullptr) {
    arguments.refuse("lse and hits must hold a number for each row");
  }
  if (arguments.on_gpu()) {
    return check_cuda(cuda().slice_values(slice, logits.element, logits.rows, cuda_stream()),
                      "cross_entropy_slice_values");
  }
  const auto rows = kCompiledCrossEntropy.pick().slice_values[static_cast<int>(logits.element)];
  at::parallel_for(0, logits.rows, rows_worth_a_thread(logits.width * 4),
                   [&](std::int64_t begin, std::int64_t end) { rows(slice, begin, end); });
}

void cross_entropy_slice_gradients(const CrossEntropySliceGradients& call, const CrossEntropy& options) {
  const Arguments arguments("cross_entropy_slice_gradients");
  const Rows logits = arguments.rows(call.logits, "logits");
  const CrossEntropySlice slice{.logits = logits.data,
                                .targets = arguments.numbers(call.targets, "targets", logits.rows),
                                .scale = arguments.sums(call.scale, "scale", logits.rows, logits.element),
                                .lse = arguments.sums(call.lse, "lse", logits.rows, logits.element),
                                .hits = nullptr,
                                .sums = nullptr,
                                .stride = logits.stride,
                                .classes = logits.width,
                                .vocabulary = call.vocabulary,
                                .label_smoothing = options.label_smoothing,
                                .z_loss = options.z_loss};
  if (slice.lse == nullptr || slice.scale == nullptr) {
    arguments.refuse("lse and scale must hold a number for each row");
  }
  if (arguments.on_gpu()) {
    return check_cuda(cuda().slice_gradients(slice, logits.element, logits.rows, cuda_stream()),
                      "cross_entropy_slice_gradients");
  }
  const auto rows = kCompiledCrossEntropy.pick().slice_gradients[static_cast<int>(logits.element)];
  at::parallel_for(0, logits.rows, rows_worth_a_thread(logits.width * 4),
                   [&](std::int64_t begin, std::int64_t end) { rows(slice, begin, end); });
}

}  // namespace trireme::kernels
