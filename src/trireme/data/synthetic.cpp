#include "trireme/data/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/data/rows.h"

namespace trireme::data {
namespace {

using spec::DataTask;
using spec::SyntheticKind;

/// What the three have in common: a stream of random numbers for each sample, and no end.
class SyntheticSamples : public Samples {
 public:
  SyntheticSamples(const RowShape& shape, std::int64_t draws, const char* name, Split split, std::uint64_t seed)
      : shape_(shape),
        draws_(draws),
        random_(seed, fmt::format("synthetic/{}/{}", name, split == Split::kTrain ? "train" : "validation")) {}

  std::int64_t length() const override { return shape_.length; }
  std::int64_t epoch() const override { return 0; }

  Batch read(std::span<const std::int64_t> samples) const override {
    Batch batch = empty_batch(samples, shape_);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      TRIREME_CHECK(samples[i] >= 0, "there is no sample {}", samples[i]);
      fill(samples[i], batch, static_cast<std::int64_t>(i));
    }
    return batch;
  }

 protected:
  virtual void fill(std::int64_t sample, Batch& batch, std::int64_t at) const = 0;

  /// `count` tokens, each of them equally likely.
  void draw_tokens(std::int64_t sample, std::int64_t vocabulary, std::span<std::int64_t> out) const {
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(vocabulary), first(sample) + i));
  }
  std::uint64_t first(std::int64_t sample) const { return static_cast<std::uint64_t>(sample * draws_); }

  /// tokens[0, length] as what is read and what is learnt.
  void write_causal(std::span<const std::int64_t> tokens, Batch& batch, std::int64_t at) const {
    std::ranges::copy(tokens.first(tokens.size() - 1), batch.tokens.ids.begin() + at * shape_.length);
    std::ranges::copy(tokens.subspan(1), batch.targets.begin() + at * shape_.length);
  }

  RowShape shape_;
  std::int64_t draws_;  // random numbers a sample takes at most
  Random random_;
};

class Markov final : public SyntheticSamples {
 public:
  Markov(const RowShape& shape, const spec::SyntheticConfig& config, Split split, std::uint64_t seed)
      : SyntheticSamples(shape, shape.length + 1, "markov", split, seed),
        chain_(config.vocab_size, config.order, config.sharpness, seed, config.zipf) {}

  std::optional<double> best_loss() const override { return chain_.best_loss(shape_.length); }

 private:
  void fill(std::int64_t sample, Batch& batch, std::int64_t at) const override {
    const auto size = static_cast<std::size_t>(shape_.length) + 1;
    std::vector<double> uniform(size);
    random_.fill_uniform(first(sample), std::span(uniform));
    std::vector<std::int64_t> tokens(size);
    std::int64_t context = chain_.draw_context(uniform[0]);
    std::int64_t digits = chain_.contexts();
    for (std::size_t i = 0; i < size; ++i) {
      if (i < static_cast<std::size_t>(chain_.order())) {
        digits /= chain_.vocabulary();
        tokens[i] = context / digits % chain_.vocabulary();
      } else {
        tokens[i] = chain_.draw_token(context, uniform[i]);
        context = chain_.next_context(context, tokens[i]);
      }
    }
    write_causal(tokens, batch, at);
  }

  MarkovChain chain_;
};

class Copy final : public SyntheticSamples {
 public:
  Copy(const RowShape& shape, std::int64_t vocabulary, Split split, std::uint64_t seed)
      : SyntheticSamples(shape, shape.length + 1, "copy", split, seed), vocabulary_(vocabulary) {}

  /// Of the row's length + 1 tokens the first `fresh` are new; the first of all is no target.
  std::optional<double> best_loss() const override {
    return static_cast<double>(fresh() - 1) / static_cast<double>(shape_.length) *
           std::log(static_cast<double>(vocabulary_));
  }

 private:
  std::int64_t fresh() const { return (shape_.length + 2) / 2; }

  void fill(std::int64_t sample, Batch& batch, std::int64_t at) const override {
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(shape_.length) + 1);
    const auto half = static_cast<std::size_t>(fresh());
    draw_tokens(sample, vocabulary_, std::span(tokens).first(half));
    for (std::size_t i = half; i < tokens.size(); ++i) tokens[i] = tokens[i - half];
    write_causal(tokens, batch, at);
  }

  std::int64_t vocabulary_;
};

class MaskedCopy final : public SyntheticSamples {
 public:
  MaskedCopy(const RowShape& shape, std::int64_t vocabulary, Split split, std::uint64_t seed)
      : SyntheticSamples(shape, shape.length, "masked copy", split, seed),
        vocabulary_(vocabulary),
        // Only the mask: with random tokens in their place the best loss would have no closed form.
        masking_({.probability = kProbability, .masked = 1, .random = 0}, split == Split::kTrain ? seed : ~seed,
                 shape) {}

  /// A hidden token is known from its copy, unless that is hidden too; the middle one of an odd row has none. In the
  /// mean over hidden tokens.
  std::optional<double> best_loss() const override {
    const std::int64_t alone = shape_.length % 2;
    const double unknown = (static_cast<double>(shape_.length - alone) * kProbability + static_cast<double>(alone)) /
                           static_cast<double>(shape_.length);
    return unknown * std::log(static_cast<double>(vocabulary_));
  }

 private:
  static constexpr double kProbability = 0.15;

  void fill(std::int64_t sample, Batch& batch, std::int64_t at) const override {
    const auto size = static_cast<std::size_t>(shape_.length), half = (size + 1) / 2;
    const auto ids = std::span(batch.tokens.ids).subspan(static_cast<std::size_t>(at) * size, size);
    draw_tokens(sample, vocabulary_, ids.first(half));
    for (std::size_t i = half; i < size; ++i) ids[i] = ids[i - half];
    masking_.apply(sample, ids, {}, std::span(batch.targets).subspan(static_cast<std::size_t>(at) * size, size));
  }

  std::int64_t vocabulary_;
  Masking masking_;
};

class Reverse final : public SyntheticSamples {
 public:
  Reverse(const RowShape& shape, std::int64_t vocabulary, Split split, std::uint64_t seed)
      : SyntheticSamples(shape, std::min(shape.length - 1, shape.source_length) + 1, "reverse", split, seed),
        vocabulary_(vocabulary) {}

  std::optional<double> best_loss() const override { return 0; }

 private:
  void fill(std::int64_t sample, Batch& batch, std::int64_t at) const override {
    const std::int64_t most = std::min(shape_.length - 1, shape_.source_length);  // with room for the end
    const auto drawn =
        random_.below(static_cast<std::uint64_t>(most), first(sample) + static_cast<std::uint64_t>(most));
    const std::int64_t size = 1 + static_cast<std::int64_t>(drawn);
    const auto source =
        std::span(batch.source.ids)
            .subspan(static_cast<std::size_t>(at * shape_.source_length), static_cast<std::size_t>(size));
    draw_tokens(sample, vocabulary_, source);
    std::int64_t* targets = batch.targets.data() + at * shape_.length;
    std::int64_t* ids = batch.tokens.ids.data() + at * shape_.length;
    std::reverse_copy(source.begin(), source.end(), targets);
    targets[size] = shape_.special.eos;
    ids[0] = shape_.special.bos;
    std::copy_n(targets, size, ids + 1);
    // Padding is a document of its own on both sides.
    const auto mark = [&](TokenRows& rows, std::int64_t used) {
      std::fill(rows.documents.begin() + at * rows.length + used, rows.documents.begin() + (at + 1) * rows.length, 1);
    };
    mark(batch.source, size);
    mark(batch.tokens, size + 1);
  }

  std::int64_t vocabulary_;
};

}  // namespace

std::unique_ptr<Samples> synthetic_samples(const spec::DataConfig& data, DataTask task, Split split,
                                           std::uint64_t seed) {
  const spec::SyntheticConfig& config = data.synthetic;
  const std::int64_t vocabulary = config.vocab_size;
  const auto symbol = [&](std::int64_t number) { return static_cast<std::int32_t>(vocabulary + number); };
  RowShape shape{.length = data.seq_len, .vocab_size = spec::synthetic_tokens(config, task)};
  if (task == DataTask::kCausal && config.kind == SyntheticKind::kMarkov)
    return std::make_unique<Markov>(shape, config, split, seed);
  if (task == DataTask::kCausal && config.kind == SyntheticKind::kCopy)
    return std::make_unique<Copy>(shape, vocabulary, split, seed);
  if (task == DataTask::kMasked && config.kind == SyntheticKind::kCopy) {
    shape.special.mask = symbol(0);
    return std::make_unique<MaskedCopy>(shape, vocabulary, split, seed);
  }
  if (task == DataTask::kSeq2Seq && config.kind == SyntheticKind::kReverse) {
    shape.special = {.bos = symbol(0), .eos = symbol(1), .pad = symbol(2)};
    shape.documents = true;
    shape.source_length = data.source_seq_len.value_or(data.seq_len);
    return std::make_unique<Reverse>(shape, vocabulary, split, seed);
  }
  throw ConfigError("data.synthetic.kind is none for data.task",
                    "causal: markov or copy; masked: copy; seq2seq: reverse");
}

}  // namespace trireme::data
