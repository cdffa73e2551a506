#include "trireme/data/open_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/permutation.h"
#include "trireme/data/blend.h"
#include "trireme/data/rows.h"
#include "trireme/data/synthetic.h"
#include "trireme/data/tokenizer/tokenizer.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using spec::DataConfig;
using spec::DataTask;

/// Rows of several sources, blended and shuffled.
class FileSamples final : public Samples {
 public:
  struct Parts {
    std::vector<std::unique_ptr<Rows>> sources;
    std::vector<double> weights;
    RowShape shape;
    bool shuffle;
    std::uint64_t seed;
  };
  explicit FileSamples(Parts parts) : parts_(std::move(parts)), blend_(parts_.weights) {
    for (std::size_t s = 0; s < parts_.sources.size(); ++s)
      epoch_ = std::max(epoch_, blend_.samples_until(s, parts_.sources[s]->count()));
  }

  std::int64_t length() const override { return parts_.shape.length; }
  std::int64_t epoch() const override { return epoch_; }

  Batch read(std::span<const std::int64_t> samples) const override {
    Batch batch = empty_batch(samples, parts_.shape);
    TokenStream::Window window;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      TRIREME_CHECK(samples[i] >= 0, "there is no sample {}", samples[i]);
      const Blend::Place place = blend_.at(samples[i]);
      const Rows& rows = *parts_.sources[place.source];
      rows.fill(row_of(place), samples[i], batch, static_cast<std::int64_t>(i), window);
    }
    return batch;
  }

 private:
  std::int64_t row_of(const Blend::Place& place) const {
    const std::int64_t rows = parts_.sources[place.source]->count();
    const std::int64_t epoch = place.number / rows, number = place.number % rows;
    if (!parts_.shuffle) return number;
    const Random random(parts_.seed, fmt::format("shuffle/source {}/epoch {}", place.source, epoch));
    const Permutation order(random, static_cast<std::uint64_t>(rows));
    return static_cast<std::int64_t>(order.at(static_cast<std::uint64_t>(number)));
  }

  Parts parts_;
  Blend blend_;
  std::int64_t epoch_ = 0;
};

/// What files say of their tokens, joined: they must agree.
class CommonInfo {
 public:
  void add(const TokenFile& file) {
    const ShardInfo& info = file.info();
    if (info.tokenizer_hash != 0) {
      if (hash_ != 0 && hash_ != info.tokenizer_hash)
        throw ConfigError(fmt::format("{} was made with another tokenizer ({:016x}) than {} ({:016x})",
                                      file.path().string(), info.tokenizer_hash, hashed_by_, hash_),
                          "make both with one tokenizer: the same id must mean the same token");
      hash_ = info.tokenizer_hash;
      hashed_by_ = file.path().string();
    }
    vocab_size_ = std::max(vocab_size_, info.vocab_size);
    if (info.special == SpecialTokens{}) return;
    if (special_ != SpecialTokens{} && special_ != info.special)
      throw ConfigError(fmt::format("{} and {} name different special tokens", file.path().string(), special_by_),
                        "make both with one tokenizer");
    special_ = info.special;
    special_by_ = file.path().string();
  }
  /// The recipe's tokenizer, by which samples of text are shown, must be the files'.
  void check_tokenizer(const std::string& named) const {
    if (hash_ == 0) return;  // no file says; and loading a large one takes a while
    const std::uint64_t hash = load_tokenizer(named)->hash();
    if (hash != hash_)
      throw ConfigError(
          fmt::format("{} was made with another tokenizer ({:016x}) than data.tokenizer = \"{}\" ({:016x})", hashed_by_,
                      hash_, named, hash),
          "name the tokenizer that made it, or make it again");
  }
  std::int64_t vocab_size() const { return vocab_size_; }  // 0: no file says

  SpecialTokens special(const spec::SpecialConfig& given) const {
    return {given.bos.value_or(special_.bos),   given.eos.value_or(special_.eos), given.pad.value_or(special_.pad),
            given.mask.value_or(special_.mask), given.cls.value_or(special_.cls), given.sep.value_or(special_.sep)};
  }

 private:
  std::uint64_t hash_ = 0;
  std::int64_t vocab_size_ = 0;
  SpecialTokens special_;
  std::string hashed_by_, special_by_;
};

struct Source {
  std::string path;
  double weight = 1;
  std::vector<SharedFile> files;
};

/// With weights each source by itself; without, all files as one: then every sample comes once an epoch.
std::vector<Source> open_sources(const DataConfig& data, const std::vector<spec::DataSource>& named, bool pairs) {
  std::vector<Source> sources;
  for (const spec::DataSource& source : named) {
    if (source.weight || sources.empty()) sources.push_back({source.path, source.weight.value_or(1), {}});
    for (const fs::path& path : token_paths(source.path)) {
      auto file = std::make_shared<const TokenFile>(path, TokenFileOptions{.end_of_text = data.end_of_text});
      const bool can_be_pairs =
          file->info().pairs || (file->format() != TokenFormat::kShard && file->documents() % 2 == 0);
      if (pairs && !can_be_pairs)
        throw ConfigError(
            fmt::format("{} holds no pairs of source and target, which data.task = \"seq2seq\" needs", path.string()),
            "write its shards in pairs, or train a causal model on it");
      sources.back().files.push_back(std::move(file));
    }
  }
  return sources;
}

RowShape row_shape(const DataConfig& data, DataTask task, const std::optional<spec::ModelShape>& model,
                   const CommonInfo& info) {
  RowShape shape{.length = data.seq_len, .vocab_size = info.vocab_size(), .special = info.special(data.special)};
  if (model && info.vocab_size() > model->vocab_size)
    throw ConfigError(
        fmt::format("the data has a vocabulary of {}, but model.vocab_size = {}", info.vocab_size(), model->vocab_size),
        fmt::format("set model.vocab_size = {}", info.vocab_size()));
  if (shape.vocab_size == 0 && model) shape.vocab_size = model->vocab_size;
  if (shape.vocab_size == 0 && task == DataTask::kMasked)
    throw ConfigError("masking draws random tokens, and neither data nor recipe says how many there are",
                      "name the model, or write shards, which know their vocabulary");
  if (shape.vocab_size == 0) shape.vocab_size = std::int64_t{1} << 31;
  const auto& special = shape.special;
  for (const std::int32_t token : {special.bos, special.eos, special.pad, special.mask, special.cls, special.sep}) {
    if (model && token >= model->vocab_size)
      throw ConfigError(
          fmt::format("the special token {} is not below model.vocab_size = {}", token, model->vocab_size),
          fmt::format("set model.vocab_size = {}", token + 1));
  }
  shape.split_texts = data.packing == spec::Packing::kDocuments;
  shape.documents = shape.split_texts || task != DataTask::kCausal;
  if (task == DataTask::kSeq2Seq) {
    shape.source_length = data.source_seq_len.value_or(data.seq_len);
    if (special.bos < 0 || special.eos < 0)
      throw ConfigError(fmt::format("seq2seq needs a token that {} a target, and neither data nor recipe names one",
                                    special.bos < 0 ? "begins" : "ends"),
                        fmt::format("set data.special.{}", special.bos < 0 ? "bos" : "eos"));
  }
  return shape;
}

std::unique_ptr<Rows> rows_of(std::vector<SharedFile> files, DataTask task, const RowShape& shape,
                              const DataConfig& data, Split split, const SplitRule& rule) {
  switch (task) {
    case DataTask::kCausal:
      return causal_rows(TokenStream(std::move(files), split, rule), shape);
    case DataTask::kMasked:
      return masked_rows(TokenStream(std::move(files), split, rule), shape, data.masking, rule.seed);
    case DataTask::kSeq2Seq:
      return pair_rows(std::move(files), shape, split, rule);
  }
  return nullptr;
}

}  // namespace

std::vector<fs::path> token_paths(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return {path};
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(path)) {
    const fs::path ending = entry.path().extension();
    if (entry.is_regular_file() && (ending == ".shard" || ending == ".bin" || ending == ".txt"))
      found.push_back(entry.path());
  }
  if (found.empty())
    throw ConfigError(fmt::format("{}: has no files of tokens: none ends in .shard, .bin or .txt", path.string()),
                      "name the folder that the shards were written to");
  std::ranges::sort(found);  // folders list in any order, and ranks must agree
  return found;
}

std::unique_ptr<Samples> open_samples(const spec::Recipe& recipe, Split split) {
  const DataConfig& data = recipe.data;
  const DataTask task = spec::task_of(data, recipe.model);
  const auto seed = static_cast<std::uint64_t>(recipe.run.seed);
  if (data.synthetic.kind) return synthetic_samples(data, task, split, seed);
  if (data.sources.empty())
    throw ConfigError("the recipe names no data to train on",
                      "add [[data.sources]] with a path, or set data.synthetic.kind = \"markov\"");
  const bool own_validation = !data.validation.empty();
  const SplitRule rule = {own_validation ? 0 : data.validation_fraction.value_or(spec::kValidationFraction), seed};
  if (split == Split::kValidation && !own_validation && rule.fraction == 0) return nullptr;
  const bool named_validation = own_validation && split == Split::kValidation;

  std::vector<Source> sources =
      open_sources(data, named_validation ? data.validation : data.sources, task == DataTask::kSeq2Seq);
  CommonInfo info;
  for (const Source& source : sources) {
    for (const SharedFile& file : source.files) info.add(*file);
  }
  if (data.tokenizer) info.check_tokenizer(*data.tokenizer);
  FileSamples::Parts parts{.sources = {},
                           .weights = {},
                           .shape = row_shape(data, task, spec::shape_of(recipe.model), info),
                           .shuffle = data.shuffle,
                           .seed = seed};
  for (Source& source : sources) {
    // Named validation files are whole: they are the training side of a split that keeps nothing.
    auto rows =
        rows_of(std::move(source.files), task, parts.shape, data, named_validation ? Split::kTrain : split, rule);
    if (rows->count() == 0)
      throw ConfigError(
          fmt::format("{}: has no tokens for {}", source.path, split == Split::kTrain ? "training" : "validation"),
          split == Split::kTrain ? "name a source with some text"
                                 : "set data.validation_fraction = 0, or name [[data.validation]]");
    parts.sources.push_back(std::move(rows));
    parts.weights.push_back(source.weight);
  }
  return std::make_unique<FileSamples>(std::move(parts));
}

}  // namespace trireme::data
