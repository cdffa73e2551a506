// trireme tokenize: text becomes token shards.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/corpus_options.h"
#include "trireme/cli/program.h"
#include "trireme/data/corpus/tokenize_corpus.h"

namespace trireme::cli {
namespace {

struct TokenizeOptions {
  CorpusFlags corpus;
  std::string tokenizer, out, shard_size = "256M";
  bool no_end = false, no_special = false;
};

int run_tokenize(TokenizeOptions& options, std::ostream& out) {
  if (options.corpus.names.empty() || options.tokenizer.empty() || options.out.empty())
    throw ConfigError(
        "trireme tokenize needs text, --tokenizer and --out",
        "for example: trireme tokenize books/ --tokenizer bytes --out shards/; see trireme tokenize --help");
  const auto tokenizer = data::load_tokenizer(options.tokenizer);
  const data::Corpus corpus = options.corpus.open(/*any_bytes=*/tokenizer->is_bytes());
  const data::TokenizeResult result =
      data::tokenize_corpus(corpus, *tokenizer,
                            {.out = options.out,
                             .threads = options.corpus.threads,
                             .chunk_bytes = static_cast<std::uint64_t>(parse_bytes(options.shard_size)),
                             .add_special = !options.no_special,
                             .end_documents = !options.no_end});
  fmt::print(out, "{}: {} tokens of {} in {}, {} bytes a token{}\n", options.out, result.tokens,
             counted(result.documents, "document"), counted(result.shards.size(), "shard"),
             result.tokens == 0
                 ? "-"
                 : fmt::format("{:.2f}", static_cast<double>(corpus.bytes()) / static_cast<double>(result.tokens)),
             result.kept > 0 ? fmt::format("; {} were there already", result.kept) : "");
  return kExitFine;
}

constexpr const char* kFooter =
    R"(Called again after it was stopped, it goes on with the shards that are missing. What is in a shard does not depend on
the number of threads.

Examples:
  trireme tokenize train books/ --vocab-size 32k --pattern llama3 -o tokenizer.json
  trireme tokenize books/ web.jsonl --field content --tokenizer tokenizer.json --out shards/
  trireme tokenize names.txt --split lines --tokenizer bytes --out shards/)";

}  // namespace

void add_tokenize_command(Command& app, Context& context) {
  Command& command = app.add_subcommand("tokenize", "Turn text into token shards, or learn a tokenizer from text");
  const auto options = std::make_shared<TokenizeOptions>();
  options->corpus.add_to(command);
  command.add_option("--tokenizer", options->tokenizer, "A tokenizer.json, a folder that holds one, or the word bytes");
  command.add_option("--out", options->out, "The folder for the shards");
  command.add_option("--shard-size", options->shard_size, "Bytes of text that go into one shard; default 256M");
  command.add_flag("--no-eos", options->no_end, "Do not end documents with the tokenizer's end-of-text token");
  command.add_flag("--no-special", options->no_special,
                   "Do not put around documents what the tokenizer's template has");
  command.callback([&command, options, &context] {
    if (command.has_chosen_subcommand()) return;
    context.run = [options, &context] { return run_tokenize(*options, context.out); };
  });
  add_tokenize_train(command, context);
  command.footer(kFooter);  // last: commands made after it would repeat it
}

}  // namespace trireme::cli
