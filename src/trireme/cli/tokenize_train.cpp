// trireme tokenize train: learns a tokenizer from text.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/command.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/corpus_options.h"
#include "trireme/cli/program.h"
#include "trireme/data/corpus/tokenize_corpus.h"

namespace trireme::cli {
namespace {

struct TrainTokenizerOptions {
  CorpusFlags corpus;
  data::BpeTrainingOptions training;
  std::string vocab_size = "32k", out;
};

int run_train_tokenizer(TrainTokenizerOptions& options, std::ostream& out) {
  const std::int64_t vocab_size = parse_count(options.vocab_size);
  if (vocab_size < 1 || vocab_size > 10'000'000)
    throw ConfigError(fmt::format("--vocab-size {} is not within 1 and 10M", options.vocab_size));
  data::BpeTrainingOptions& training = options.training;
  training.vocab_size = static_cast<std::int32_t>(vocab_size);
  training.progress = Progress::to_stderr();  // now that --quiet is known
  if (!training.begin.empty() &&
      std::ranges::find(training.special_tokens, training.begin) == training.special_tokens.end())
    training.special_tokens.push_back(training.begin);
  const data::Corpus corpus = options.corpus.open(/*any_bytes=*/false);
  const data::WordCounts words = data::count_words(corpus, training.pattern, options.corpus.threads);
  const data::Tokenizer tokenizer(data::train_bpe(words, training), options.out);
  if (tokenizer.vocab_size() < training.vocab_size)
    log_warn("the text has pairs for {} tokens only: {} were asked for", tokenizer.vocab_size(), training.vocab_size);
  tokenizer.save(options.out);
  fmt::print(out, "{}: {} tokens from {} in {} bytes of text\n", options.out, tokenizer.vocab_size(),
             counted(words.size(), "different word"), corpus.bytes());
  return kExitFine;
}

}  // namespace

void add_tokenize_train(Command& tokenize, Context& context) {
  Command& command = tokenize.add_subcommand("train", "Learn a byte-level BPE vocabulary from text");
  const auto options = std::make_shared<TrainTokenizerOptions>();
  options->corpus.add_to(command);
  command.get_option("FILES").required();
  command.add_option("--vocab-size", options->vocab_size,
                     "Tokens, the 256 bytes and special ones included; default 32k");
  std::map<std::string, data::KnownPattern> patterns;
  for (const auto& [name, value] : data::enum_names(std::type_identity<data::KnownPattern>()))
    patterns[std::string(name)] = value;
  add_choice(command, "--pattern", options->training.pattern, patterns,
             "How text is cut into words; qwen also normalizes; default gpt2");
  command.add_option("--special", options->training.special_tokens,
                     "Special tokens, which get the first ids; default <|endoftext|>");
  command.add_option("--bos", options->training.begin, "A special token that is put before every text; default none");
  command
      .add_option("--min-frequency", options->training.least_count,
                  "Pairs that are less frequent are not merged; default 2")
      .positive();
  command.add_option("-o,--out", options->out, "The tokenizer.json to write").required();
  command.callback([options, &context] {
    context.run = [options, &context] { return run_train_tokenizer(*options, context.out); };
  });
}

}  // namespace trireme::cli
