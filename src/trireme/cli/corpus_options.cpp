#include "trireme/cli/corpus_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <thread>

namespace trireme::cli {

void CorpusFlags::add_to(CLI::App& command) {
  threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  command.add_option("FILES", names, "Files ending in .txt or .jsonl, and folders that hold some");
  command.add_option("--field", field, "What holds the text in each line's object of a .jsonl; default text");
  std::map<std::string, data::DocumentSplit> splits;
  for (const auto& [name, value] : data::enum_names(std::type_identity<data::DocumentSplit>()))
    splits[std::string(name)] = value;
  command
      .add_option("--split", split,
                  "Where documents of a .txt end: file, lines, blank-lines, or separator; default file: it is one")
      ->transform(CLI::CheckedTransformer(splits));
  command.add_option("--separator", separator, "The line between documents; means --split separator");
  command.add_option("--threads", threads, "Threads; default: one a core")->check(CLI::Range(1, 1024));
}

data::Corpus CorpusFlags::open(bool any_bytes) const {
  return data::Corpus(data::find_corpus_files(names),
                      {.field = field,
                       .split = separator.empty() ? split : data::DocumentSplit::kSeparator,
                       .separator = separator,
                       .any_bytes = any_bytes});
}

}  // namespace trireme::cli
