#include "trireme/kernels/cross_entropy.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>

#include "tests/kernels/support.h"

namespace trireme::kernels {
namespace {

using testing::HasSubstr;

struct Result {
  at::Tensor gradient, losses, z_losses, lse;
};
Result run(const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& scale, const CrossEntropy& options) {
  const auto sums = logits.options().dtype(sums_type(logits.scalar_type()));
  Result r;
  r.gradient = logits.clone();
  r.losses = at::empty({logits.size(0)}, sums);
  r.z_losses = at::empty({logits.size(0)}, sums);
  r.lse = at::empty({logits.size(0)}, sums);
  cross_entropy({r.gradient, targets, scale, r.losses, r.z_losses, r.lse}, options);
  return r;
}

at::Tensor targets_for(std::int64_t rows, std::int64_t classes) {
  at::Tensor targets = at::empty({rows}, at::kLong);
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto draw = Random(3, "targets").below(static_cast<std::uint64_t>(classes), static_cast<std::uint64_t>(row));
    targets[row] = row % 5 == 3 ? -100 : static_cast<std::int64_t>(draw);
  }
  return targets;
}

TEST(CrossEntropyKernels, EqualPyTorchsWithSmoothingAndTheZLoss) {
  for_every_type_and_set([](const Precision& precision) {
    for (const CrossEntropy options :
         {CrossEntropy{}, {.label_smoothing = 0.1}, {.z_loss = 1e-2}, {.label_smoothing = 0.3, .z_loss = 1e-3}}) {
      for (const std::int64_t classes : {1, 3, 16, 17, 768, 1000, 5003}) {
        const std::int64_t rows = classes > 1000 ? 3 : 11;
        SCOPED_TRACE(fmt::format("{} classes, smoothing {}, z {}", classes, options.label_smoothing, options.z_loss));
        const auto type = precision.type;
        const at::Tensor logits = normal_tensor({rows, classes}, type, "logits", 4).add(20);
        const at::Tensor targets = targets_for(rows, classes);
        const at::Tensor scale = normal_tensor({rows}, sums_type(type), "scale");
        const Result ours = run(logits, targets, scale, options);

        const at::Tensor in = wide(logits);
        const at::Tensor losses = at::cross_entropy_loss(in, targets, {}, /*none*/ 0, -100, options.label_smoothing);
        const at::Tensor lse = at::logsumexp(in, 1).mul(targets.ne(-100)), z = lse.square().mul(options.z_loss);
        losses.add(z).mul(wide(scale, false)).sum().backward();
        const double error = type == at::kDouble ? 1e-12 : 4e-6;
        expect_near(ours.losses, losses, error, error * 10, "losses");
        expect_near(ours.lse, lse, error, 0, "lse");
        expect_near(ours.z_losses, z, error * 2, 0, "z_losses");
        // Where the target's p - 1 cancels, the error is that of p.
        expect_near(ours.gradient, in.grad(), precision.relative, type == at::kDouble ? 1e-13 : 1e-6, "gradient");
      }
    }
  });
}

TEST(CrossEntropyKernels, LeaveTheLogitsWithoutAScale) {
  const at::Tensor logits = normal_tensor({4, 50}, at::kFloat, "l"), targets = targets_for(4, 50), none;
  at::Tensor same = logits.clone(), losses = at::empty({4}), nothing;
  cross_entropy({same, targets, none, losses, nothing, nothing}, {});
  EXPECT_TRUE(same_bits(same, logits));
  expect_near(losses, at::cross_entropy_loss(logits, targets, {}, 0), 1e-6, 1e-6, "losses");
}

TEST(CrossEntropyKernels, StandLargeLogitsAndClassesThatAreRuledOut) {
  for_every_type_and_set([](const Precision& precision) {
    at::Tensor logits = normal_tensor({6, 2100}, precision.type, "l");
    logits[0].fill_(-30000);
    logits[0][2099] = 30000;                       // sure, and found in the last piece
    logits[1].slice(0, 0, 2000).fill_(-INFINITY);  // pieces with nothing in them
    logits[2].fill_(-INFINITY);                    // no class left
    logits[3][7] = std::nan("");
    logits[4][7] = INFINITY;
    const at::Tensor targets = at::tensor({2099, 2005, 1, 2, 3, 4}, at::kLong);
    const at::Tensor scale = at::ones({6}, sums_type(precision.type));
    const Result r = run(logits, targets, scale, {});
    EXPECT_EQ(r.losses[0].item<double>(), 0);
    EXPECT_EQ(r.gradient[0].abs().sum().item<double>(), 0);
    const at::Tensor in = wide(logits[1].unsqueeze(0));
    const at::Tensor loss = at::cross_entropy_loss(in, targets.slice(0, 1, 2), {}, 0);
    loss.sum().backward();
    expect_near(r.losses[1].unsqueeze(0), loss, 1e-5, 1e-6, "loss");
    expect_near(r.gradient[1].unsqueeze(0), in.grad(), precision.relative, 1e-6, "gradient");
    for (const int row : {2, 3, 4}) EXPECT_TRUE(r.losses[row].isnan().item<bool>()) << row;
    EXPECT_TRUE(r.gradient[3].isnan().all().item<bool>());
    EXPECT_TRUE(r.losses[5].isfinite().item<bool>());
  });
}

TEST(CrossEntropyKernels, GiveZerosForIgnoredRowsWhateverTheyHold) {
  at::Tensor logits = at::full({2, 40}, std::nan("")), losses = at::ones({2}), nothing;
  const at::Tensor targets = at::tensor({7, 7}, at::kLong), scale = at::ones({2});
  cross_entropy({logits, targets, scale, losses, nothing, nothing}, {.ignore = 7});
  EXPECT_EQ(logits.abs().sum().item<double>(), 0);
  EXPECT_EQ(losses.abs().sum().item<double>(), 0);
}

TEST(CrossEntropyKernels, GiveTheSameBitsForAnyNumberOfThreads) {
  for_every_type_and_set([](const Precision& precision) {
    const at::Tensor logits = normal_tensor({37, 3001}, precision.type, "l"), targets = targets_for(37, 3001);
    const at::Tensor scale = at::ones({37}, sums_type(precision.type));
    const auto once = [&] { return run(logits, targets, scale, {.label_smoothing = 0.1}); };
    const Result one = with_threads(1, once), two = with_threads(2, once);
    EXPECT_TRUE(same_bits(one.gradient, two.gradient) && same_bits(one.losses, two.losses));
  });
}

TEST(CrossEntropyKernels, SayWhatIsWrong) {
  at::Tensor logits = at::zeros({2, 5}), losses = at::zeros({2}), nothing, short_losses = at::zeros({1});
  const at::Tensor targets = at::tensor({1, 5}, at::kLong), good = at::tensor({1, 4}, at::kLong), none;
  EXPECT_EQ(refusal([&] {
              cross_entropy({logits, targets, none, losses, nothing, nothing}, {});
            }),
            "cross_entropy: targets[1] is 5, but logits, float [2, 5] has classes 0 to 4");
  EXPECT_THAT(refusal([&] {
                cross_entropy({logits, good, none, short_losses, nothing, nothing}, {});
              }),
              HasSubstr("losses, float [1] must be 2 contiguous"));
  EXPECT_THAT(refusal([&] {
                cross_entropy({logits, good, none, losses, nothing, nothing}, {.label_smoothing = 2});
              }),
              HasSubstr("label_smoothing is 2"));
}

}  // namespace
}  // namespace trireme::kernels
