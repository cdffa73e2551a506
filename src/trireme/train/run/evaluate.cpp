#include "trireme/train/run/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <vector>

#include "trireme/spec/batch_split.h"
#include "trireme/train/engine/feed.h"

namespace trireme::train {

double Evaluation::perplexity() const { return std::exp(loss()); }
double Evaluation::bits_per_byte() const { return nn::sum_of(terms) / std::numbers::ln2 / bytes; }

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
  std::vector<nn::LossTerm> terms;
  double bytes = 0;
  const auto one_batch = [&](std::vector<std::int64_t> numbers, bool counts) {
    data::Batch batch = samples.read(numbers);
    nn::Context context;
    nn::Tensors inputs = feed(batch, context, *ranks.shape);
    nn::take_tokens(inputs, context, ranks.tokens);
    if (!ranks.device.is_cpu()) move_to(ranks.device, inputs, context, *ranks.shape);
    forward(std::move(inputs), context);
    for (const nn::LossTerm& term : context.losses) {
      if (!counts) continue;
      if (ranks.counts(term)) nn::add_term(terms, term);
      if (term.name == nn::kMainLoss && ranks.counts_rows) bytes += count_bytes(batch, options.token_bytes);
    }
  };
  const spec::RowRange mine = spec::share_of_rows(options.first, options.count, ranks.rank, ranks.ranks);
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
  nn::LossReducer(ranks.all).reduce({&terms, 1}, {&bytes, 1});
  Evaluation evaluation{.terms = std::move(terms), .bytes = bytes};
  evaluation.counts.samples = static_cast<double>(options.count);
  const auto main = std::ranges::find(evaluation.terms, nn::kMainLoss, &nn::LossTerm::name);
  if (main != evaluation.terms.end()) evaluation.counts.targets = main->count;
  return evaluation;
}

}  // namespace trireme::train
