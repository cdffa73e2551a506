#include "trireme/train/run/evaluate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>
#include <vector>

#include "trireme/train/engine/feed.h"
#include "trireme/train/engine/step_plan.h"

namespace trireme::train {

double Evaluation::perplexity() const { return std::exp(loss()); }
double Evaluation::bits_per_byte() const { return loss_sum / std::numbers::ln2 / bytes; }

double count_bytes(const data::Batch& batch, std::span<const std::int32_t> token_bytes) {
  double bytes = 0;
  for (const std::int64_t target : batch.targets) {
    const auto token = static_cast<std::size_t>(target);
    if (target != data::kNoTarget && token < token_bytes.size()) bytes += token_bytes[token];
  }
  return bytes;
}

Evaluation evaluate(models::Model& model, const data::Samples& samples, comm::Group& world,
                    const EvaluateOptions& options) {
  const auto forward = [&](nn::Tensors inputs, nn::Context& context) {
    model.forward(std::move(inputs), context, nullptr);
  };
  return evaluate(forward, samples,
                  {.all = world,
                   .rank = world.rank(),
                   .ranks = world.size(),
                   .device = model.params.begin()->value.device(),
                   .shape = &model.shape},
                  options);
}

Evaluation evaluate(const Forward& forward, const data::Samples& samples, const EvaluateRanks& ranks,
                    const EvaluateOptions& options) {
  std::array<double, 3> sums{};
  const auto one_batch = [&](std::vector<std::int64_t> numbers, bool counts) {
    data::Batch batch = samples.read(numbers);
    nn::Context context;
    nn::Tensors inputs = feed(batch, context);
    nn::take_tokens(inputs, context, ranks.tokens);
    if (!ranks.device.is_cpu()) move_to(ranks.device, inputs, context, *ranks.shape);
    forward(std::move(inputs), context);
    for (const nn::LossTerm& term : context.losses) {
      if (term.name != "loss" || !counts) continue;
      if (ranks.counts_loss) sums[0] += term.sum;
      if (ranks.counts_loss) sums[1] += term.count;
      if (ranks.counts_rows) sums[2] += count_bytes(batch, options.token_bytes);
    }
  };
  const RowRange mine = stretch_of(options.first, options.count, ranks.rank, ranks.ranks);
  std::int64_t batches = 0;
  for (std::int64_t done = 0; done < mine.count; ++batches) {
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(std::min(options.rows, mine.count - done)));
    std::iota(numbers.begin(), numbers.end(), mine.first + done);
    done += static_cast<std::int64_t>(numbers.size());
    one_batch(std::move(numbers), /*counts=*/true);
    if (options.progress) options.progress(done);
  }
  if (ranks.lockstep && options.count > 0) {
    const std::int64_t most_rows = (options.count + ranks.ranks - 1) / ranks.ranks;
    for (; batches < (most_rows + options.rows - 1) / options.rows; ++batches) {
      one_batch({options.first}, /*counts=*/false);
    }
  }
  if (ranks.all.size() > 1) {
    ranks.all.all_reduce(comm::Buffer{sums.data(), sums.size(), comm::DType::kF64}, comm::Reduce::kSum).wait();
  }
  return {.loss_sum = sums[0], .targets = sums[1], .bytes = sums[2]};
}

}  // namespace trireme::train
