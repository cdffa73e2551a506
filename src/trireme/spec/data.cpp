#include "trireme/spec/data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trireme::spec {
namespace {

constexpr Named<DataTask> kTasks[] = {
    {"causal", DataTask::kCausal}, {"masked", DataTask::kMasked}, {"seq2seq", DataTask::kSeq2Seq}};
constexpr Named<Packing> kPackings[] = {{"documents", Packing::kDocuments}, {"stream", Packing::kStream}};
constexpr Named<SyntheticKind> kKinds[] = {
    {"markov", SyntheticKind::kMarkov}, {"copy", SyntheticKind::kCopy}, {"reverse", SyntheticKind::kReverse}};
constexpr std::int64_t kLongest = 1 << 24;                        // tokens a row
constexpr std::int64_t kMostTransitions = std::int64_t{1} << 22;  // entries of a Markov chain's table

using Problems = std::vector<config::Problem>;

std::string task_text(DataTask task) { return fmt::format("data.task = \"{}\"", name_in<DataTask>(kTasks, task)); }
std::string kind_text(SyntheticKind kind) {
  return fmt::format("data.synthetic.kind = \"{}\"", name_in<SyntheticKind>(kKinds, kind));
}

bool can_be(SyntheticKind kind, DataTask task) {
  switch (kind) {
    case SyntheticKind::kMarkov:
      return task == DataTask::kCausal;
    case SyntheticKind::kCopy:
      return task != DataTask::kSeq2Seq;
    case SyntheticKind::kReverse:
      return task == DataTask::kSeq2Seq;
  }
  return false;
}

/// A key that is given and then ignored is how people train the wrong thing for a week.
void add_unused(Problems& problems, std::string key, bool given, const std::string& why) {
  if (given)
    problems.push_back({.key = std::move(key),
                        .reason = fmt::format("is given, but {} does not use it", why),
                        .hint = "leave it out"});
}

void add_source_problems(const std::vector<DataSource>& sources, const std::string& key, const DataConfig& data,
                         Problems& problems) {
  const auto weighted =
      std::ranges::count_if(sources, [](const DataSource& source) { return source.weight.has_value(); });
  double total = 0;
  for (const DataSource& source : sources) total += source.weight.value_or(0);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const DataSource& source = sources[i];
    const std::string name = fmt::format("{}.{}", key, i);
    if (source.path.empty())
      problems.push_back({.key = name + ".path", .reason = "is empty", .hint = "name a file or a folder of files"});
    if (source.path.ends_with(".txt") && data.tokenizer != "bytes")
      problems.push_back(
          {.key = name + ".path",
           .reason = fmt::format("{} is a text file, which only the byte tokenizer reads directly", source.path),
           .hint = "set data.tokenizer = \"bytes\", or tokenize it into shards with `trireme tokenize`"});
    if (weighted > 0 && !source.weight)
      problems.push_back({.key = name + ".weight",
                          .reason = "is not given, but other sources have one",
                          .hint = "give every source a weight, or none: then each is weighted by its size"});
    if (source.weight && *source.weight * static_cast<double>(kMostBlendParts) < total)
      problems.push_back({.key = name + ".weight",
                          .reason = fmt::format("is {} of {} in all, less than one part in {}", *source.weight, total,
                                                kMostBlendParts),
                          .hint = "leave the source out, or give it more"});
  }
}

void add_synthetic_problems(const DataConfig& data, DataTask task, Problems& problems) {
  const SyntheticConfig& synthetic = data.synthetic;
  if (!synthetic.kind) {
    if (synthetic != SyntheticConfig{})
      problems.push_back({.key = "data.synthetic",
                          .reason = "has no kind",
                          .hint = "set data.synthetic.kind = \"markov\", or leave the section out"});
    return;
  }
  const SyntheticKind kind = *synthetic.kind;
  if (!data.sources.empty())
    problems.push_back({.key = "data.synthetic.kind",
                        .reason = "is given beside data.sources; a run trains on one or the other",
                        .hint = "leave out either"});
  if (!can_be(kind, task))
    problems.push_back(
        {.key = "data.synthetic.kind",
         .reason = fmt::format("\"{}\" is no task for {}", name_in<SyntheticKind>(kKinds, kind), task_text(task)),
         .hint = fmt::format("set data.synthetic.kind = \"{}\"", task == DataTask::kSeq2Seq ? "reverse" : "copy")});
  if (kind == SyntheticKind::kMarkov) {
    const double transitions =
        std::pow(static_cast<double>(synthetic.vocab_size), static_cast<double>(synthetic.order + 1));
    if (transitions > static_cast<double>(kMostTransitions))
      problems.push_back({.key = "data.synthetic.order",
                          .reason = fmt::format("{} tokens after {} of them are {:.3g} transitions, more than {}",
                                                synthetic.vocab_size, synthetic.order, transitions, kMostTransitions),
                          .hint = "set data.synthetic.order = 1"});
  } else {
    const SyntheticConfig plain;
    add_unused(problems, "data.synthetic.order", synthetic.order != plain.order, kind_text(kind));
    add_unused(problems, "data.synthetic.sharpness", synthetic.sharpness != plain.sharpness, kind_text(kind));
    add_unused(problems, "data.synthetic.zipf", synthetic.zipf != plain.zipf, kind_text(kind));
  }
  add_unused(problems, "data.validation_fraction", data.validation_fraction.has_value(), kind_text(kind));
  add_unused(problems, "data.masking", data.masking != MaskingConfig{}, kind_text(kind));
  add_unused(problems, "data.special", data.special != SpecialConfig{}, kind_text(kind));
}

void add_model_problems(const DataConfig& data, DataTask task, const ModelShape& shape, Problems& problems) {
  const auto too_long = [&](const char* key, std::int64_t length) {
    if (length > shape.max_seq_len)
      problems.push_back(
          {.key = key,
           .reason = fmt::format("is {}, but model.max_seq_len = {} is the longest", length, shape.max_seq_len),
           .hint = fmt::format("set {} = {}", key, shape.max_seq_len)});
  };
  if (const DataTask needed = task_of(shape); task != needed) {
    if (data.task)
      problems.push_back({.key = "data.task",
                          .reason = fmt::format("is \"{}\", but the model is made for \"{}\"",
                                                name_in<DataTask>(kTasks, task), name_in<DataTask>(kTasks, needed)),
                          .hint = fmt::format("set data.task = \"{}\"", name_in<DataTask>(kTasks, needed))});
    return;
  }
  too_long("data.seq_len", data.seq_len);
  if (task == DataTask::kSeq2Seq && data.source_seq_len) too_long("data.source_seq_len", *data.source_seq_len);
  const std::int64_t tokens = synthetic_tokens(data.synthetic, task);
  if (data.synthetic.kind && tokens > shape.vocab_size)
    problems.push_back({.key = "data.synthetic.vocab_size",
                        .reason = fmt::format("is {}, so that token ids reach {}, but model.vocab_size = {}",
                                              data.synthetic.vocab_size, tokens - 1, shape.vocab_size),
                        .hint = fmt::format("set model.vocab_size = {}", tokens)});
}

}  // namespace

std::span<const Named<DataTask>> enum_names(std::type_identity<DataTask>) { return kTasks; }
std::span<const Named<Packing>> enum_names(std::type_identity<Packing>) { return kPackings; }
std::span<const Named<SyntheticKind>> enum_names(std::type_identity<SyntheticKind>) { return kKinds; }

void describe(config::Section<DataSource>& section) {
  section.meaning("token files to sample from");
  section
      .field("path", &DataSource::path,
             "a token shard, a Megatron .bin/.idx pair or an llm.c .bin file; with tokenizer = \"bytes\" also a .txt "
             "file; or a folder of them")
      .required();
  section
      .field("weight", &DataSource::weight,
             "sampling weight of this source in the blend, relative to the others; unset for all: every sample comes "
             "once an epoch")
      .above(0);
}

void describe(config::Section<SpecialConfig>& section) {
  section.meaning("ids of special tokens; unset: as the token shards say");
  section.field("bos", &SpecialConfig::bos, "seq2seq: beginning of sequence, the decoder's first input").at_least(0);
  section.field("eos", &SpecialConfig::eos, "seq2seq: end of sequence, the decoder's last target").at_least(0);
  section.field("pad", &SpecialConfig::pad, "padding; masked in attention and left out of the loss").at_least(0);
  section.field("mask", &SpecialConfig::mask, "masked: the [MASK] token").at_least(0);
  section.field("cls", &SpecialConfig::cls, "masked: the [CLS] token, first in each sequence").at_least(0);
  section.field("sep", &SpecialConfig::sep, "masked: the [SEP] token, last in each sequence").at_least(0);
}

void describe(config::Section<MaskingConfig>& section) {
  section.meaning("masked language modelling (BERT): which tokens are predicted");
  section.field("probability", &MaskingConfig::probability, "probability that a token is a prediction target")
      .above(0)
      .at_most(1);
  section.field("masked", &MaskingConfig::masked, "fraction of the targets replaced by the mask token").range(0, 1);
  section.field("random", &MaskingConfig::random, "fraction of the targets replaced by a random token; the rest stay")
      .range(0, 1);
}

void describe(config::Section<SyntheticConfig>& section) {
  section.meaning("a synthetic task in place of files, whose lowest possible loss is known");
  section.field("kind", &SyntheticConfig::kind,
                "markov: a Markov chain with random transitions; copy: random tokens, then the same again; reverse: "
                "seq2seq, the source backwards");
  section.field("vocab_size", &SyntheticConfig::vocab_size, "number of token ids, special tokens not counted")
      .range(2, 1 << 20);
  section.retired("vocabulary", "vocab_size");
  section.field("order", &SyntheticConfig::order, "markov: order of the chain, the tokens that the next one depends on")
      .range(1, 8);
  section
      .field("sharpness", &SyntheticConfig::sharpness,
             "markov: standard deviation of the transitions' log-probabilities; 0: uniform")
      .range(0, 20);
  section
      .field("zipf", &SyntheticConfig::zipf,
             "markov: token i is drawn with a weight of (i + 1)^-zipf beside its transitions', so that contexts follow "
             "Zipf's law; 0: all alike")
      .range(0, 4);
}

void describe(config::Section<DataConfig>& section) {
  section.meaning("the training data and how it is cut into sequences");
  section.field("task", &DataConfig::task,
                "training objective: causal (next token), masked (BERT) or seq2seq; unset: what the model family is "
                "made for");
  section
      .field("seq_len", &DataConfig::seq_len,
             "sequence length in tokens, at most model.max_seq_len; seq2seq: of the "
             "decoder")
      .unit(Unit::kCount)
      .range(2, kLongest);
  section
      .field("source_seq_len", &DataConfig::source_seq_len,
             "seq2seq: sequence length of the encoder in tokens; unset: data.seq_len")
      .unit(Unit::kCount)
      .range(1, kLongest);
  section.field("packing", &DataConfig::packing,
                "documents: a sequence is packed with whole documents, attention is masked between them, position ids "
                "restart and no loss crosses a boundary; stream: sequences are cut from the concatenated text");
  section.field("shuffle", &DataConfig::shuffle,
                "shuffle the samples, anew each epoch; false: in the order of the files");
  section.field(
      "tokenizer", &DataConfig::tokenizer,
      "path of the tokenizer that made the tokens, or \"bytes\"; used to read text files and to print samples");
  section
      .field("end_of_text", &DataConfig::end_of_text,
             "llm.c files: id of the token between documents; unset: each file is one document")
      .at_least(0);
  section
      .field("validation_fraction", &DataConfig::validation_fraction,
             "fraction of the documents held out for validation; unset: 0.01, or 0 with [[data.validation]]")
      .range(0, 0.5);
  section.field("prefetch", &DataConfig::prefetch, "batches that each rank loads ahead in the background; 0: none")
      .range(0, 1024);
  section.tables("sources", &DataConfig::sources);
  section.tables("validation", &DataConfig::validation);
  section.section("special", &DataConfig::special);
  section.section("masking", &DataConfig::masking);
  section.section("synthetic", &DataConfig::synthetic);
  section.retired("sequence", "seq_len");
  section.retired("source_sequence", "source_seq_len");
}

DataTask task_of(const ModelShape& shape) {
  if (shape.num_encoder_layers > 0) return DataTask::kSeq2Seq;
  return shape.causal ? DataTask::kCausal : DataTask::kMasked;
}

DataTask task_of(const DataConfig& data, const ModelConfig& model) {
  if (data.task) return *data.task;
  if (const auto shape = shape_of(model)) return task_of(*shape);
  return data.synthetic.kind == SyntheticKind::kReverse ? DataTask::kSeq2Seq : DataTask::kCausal;
}

bool has_data(const DataConfig& data) { return !data.sources.empty() || data.synthetic.kind.has_value(); }

std::int64_t synthetic_tokens(const SyntheticConfig& synthetic, DataTask task) {
  switch (task) {
    case DataTask::kCausal:
      return synthetic.vocab_size;
    case DataTask::kMasked:
      return synthetic.vocab_size + 1;  // the mask
    case DataTask::kSeq2Seq:
      return synthetic.vocab_size + 3;  // begin, end, padding
  }
  return 0;
}

std::vector<config::Problem> find_problems(const DataConfig& data, const ModelConfig& model) {
  Problems problems;
  const DataTask task = task_of(data, model);
  add_source_problems(data.sources, "data.sources", data, problems);
  add_source_problems(data.validation, "data.validation", data, problems);
  if (!data.validation.empty() && data.sources.empty())
    problems.push_back({.key = "data.validation",
                        .reason = "is given, but there is nothing to train on",
                        .hint = "name the training data in [[data.sources]]"});
  add_unused(problems, "data.validation_fraction", data.validation_fraction && !data.validation.empty(),
             "a run with [[data.validation]]");
  add_synthetic_problems(data, task, problems);
  add_unused(problems, "data.source_seq_len", data.source_seq_len && task != DataTask::kSeq2Seq, task_text(task));
  add_unused(problems, "data.packing", data.packing != Packing::kDocuments && task == DataTask::kSeq2Seq,
             task_text(task));
  if (!data.synthetic.kind)
    add_unused(problems, "data.masking", data.masking != MaskingConfig{} && task != DataTask::kMasked, task_text(task));
  if (data.masking.masked + data.masking.random > 1)
    problems.push_back({.key = "data.masking.random",
                        .reason = fmt::format("is {}, but data.masking.masked = {} leaves less", data.masking.random,
                                              data.masking.masked),
                        .hint = "set data.masking.random = 0"});
  const auto shape = shape_of(model);
  if (shape && has_data(data)) add_model_problems(data, task, *shape, problems);
  return problems;
}

}  // namespace trireme::spec
