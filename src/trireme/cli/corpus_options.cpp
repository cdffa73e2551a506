#include "trireme/cli/corpus_options.h"

#include <map>

#include "trireme/base/cores.h"
#include "trireme/cli/command.h"

namespace trireme::cli {

void CorpusFlags::add_to(Command& command) {
  threads = usable_cores();
  command.add_option(
      "FILES", names,
      "Files ending in .txt, .md, .html, .jsonl, any of these and .gz or .zst, or .parquet; folders that hold some");
  command.add_option("--field", field,
                     "What holds the text in each line's object of a .jsonl, or the column of a .parquet; default "
                     "text, for chats messages");
  std::map<std::string, data::DocumentSplit> splits;
  for (const auto& [name, value] : data::enum_names(std::type_identity<data::DocumentSplit>()))
    splits[std::string(name)] = value;
  add_choice(command, "--split", split, splits, "Where documents of a .txt or .md end; default file: it is one");
  command.add_option("--separator", separator, "The line between documents; means --split separator");
  command.add_option("--threads", threads, "Threads; default: one a core").within(1, 1024);
}

data::Corpus CorpusFlags::open(bool any_bytes, const std::string& usual_field) const {
  return data::Corpus(data::find_corpus_files(names),
                      {.field = field.empty() ? usual_field : field,
                       .split = separator.empty() ? split : data::DocumentSplit::kSeparator,
                       .separator = separator,
                       .any_bytes = any_bytes});
}

}  // namespace trireme::cli
