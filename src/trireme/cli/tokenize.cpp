// trireme tokenize: text becomes token shards.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
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
  std::optional<data::ChatFormat> chat;
};

int run_tokenize(TokenizeOptions& options, std::ostream& out) {
  if (options.corpus.names.empty() || options.tokenizer.empty() || options.out.empty())
    throw ConfigError(
        "trireme tokenize needs text, --tokenizer and --out",
        "for example: trireme tokenize books/ --tokenizer bytes --out shards/; see trireme tokenize --help");
  const auto tokenizer = data::load_tokenizer(options.tokenizer);
  const data::Corpus corpus =
      options.corpus.open(/*any_bytes=*/tokenizer->is_bytes(), options.chat ? "messages" : "text");
  const data::TokenizeResult result =
      data::tokenize_corpus(corpus, *tokenizer,
                            {.out = options.out,
                             .threads = options.corpus.threads,
                             .chunk_bytes = static_cast<std::uint64_t>(parse_bytes(options.shard_size)),
                             .add_special = !options.no_special,
                             .end_documents = !options.no_end,
                             .chat = options.chat});
  const auto share = [&](std::uint64_t of) {
    return static_cast<double>(of) / static_cast<double>(result.made_tokens);
  };
  std::string more;
  if (result.made_tokens > 0) more = fmt::format(", {:.2f} bytes a token", share(result.text_bytes));
  if (result.made_tokens > 0 && options.chat)
    more += fmt::format(", {:.1f} % of them learnt", 100 * share(result.learnt));
  if (result.kept > 0) more += fmt::format("; {} were there already", result.kept);
  fmt::print(out, "{}: {} tokens of {} in {}{}\n", options.out, result.tokens, counted(result.documents, "document"),
             counted(result.shards.size(), "shard"), more);
  return kExitFine;
}

constexpr const char* kFooter =
    R"(Called again after it was stopped, it goes on with the shards that are missing. What is in a shard does not depend on
the number of threads.

Examples:
  trireme tokenize train books/ --vocab-size 32k --pattern llama3 -o tokenizer.json
  trireme tokenize books/ web.jsonl --field content --tokenizer tokenizer.json --out shards/
  trireme tokenize names.txt --split lines --tokenizer bytes --out shards/
  trireme tokenize chats.jsonl.zst --chat chatml --tokenizer models/qwen --out shards/)";

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
  std::map<std::string, data::ChatFormat> formats;
  for (const auto& [name, value] : data::enum_names(std::type_identity<data::ChatFormat>()))
    formats[std::string(name)] = value;
  add_choice(command, "--chat", options->chat, formats,
             "Conversations of a .jsonl in this format; only what the assistant says is learnt (a loss mask)");
  command.callback([&command, options, &context] {
    if (command.has_chosen_subcommand()) return;
    context.run = [options, &context] { return run_tokenize(*options, context.out); };
  });
  add_tokenize_train(command, context);
  command.footer(kFooter);  // last: commands made after it would repeat it
}

}  // namespace trireme::cli
