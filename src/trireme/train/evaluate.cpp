#include "trireme/train/evaluate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <vector>

#include "trireme/train/feed.h"
#include "trireme/train/step_plan.h"

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
  std::array<double, 3> sums{};
  const Stretch mine = stretch_of(options.first, options.count, world.rank(), world.size());
  for (std::int64_t done = 0; done < mine.count;) {
    std::vector<std::int64_t> numbers;
    for (; done < mine.count && static_cast<std::int64_t>(numbers.size()) < options.rows; ++done) {
      numbers.push_back(mine.first + done);
    }
    data::Batch batch = samples.read(numbers);
    nn::Context context;
    model.forward(feed(batch, context), context, nullptr);
    for (const nn::LossTerm& term : context.losses) {
      if (term.name != "loss") continue;
      sums[0] += term.sum;
      sums[1] += term.count;
    }
    sums[2] += count_bytes(batch, options.token_bytes);
    if (options.progress) options.progress(done);
  }
  if (world.size() > 1) {
    world.all_reduce(comm::Buffer{sums.data(), sums.size(), comm::DType::kF64}, comm::Reduce::kSum).wait();
  }
  return {.loss_sum = sums[0], .targets = sums[1], .bytes = sums[2]};
}

}  // namespace trireme::train
