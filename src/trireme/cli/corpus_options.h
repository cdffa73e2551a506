// cli/corpus_options.h -- the options with which commands are told what text to read.
//
// Depends on: command.h, data/corpus/corpus.h.
#pragma once

#include <string>
#include <vector>

#include "trireme/cli/command.h"
#include "trireme/data/corpus/corpus.h"

namespace trireme::cli {

struct CorpusFlags {
  std::vector<std::string> names;
  std::string field, separator;
  data::DocumentSplit split = data::DocumentSplit::kFile;
  int threads = 0;  // all cores once add_to() has been called

  void add_to(Command& command);
  /// `usual_field`: what holds the text in a .jsonl where --field does not say it.
  data::Corpus open(bool any_bytes, const std::string& usual_field = "text") const;
};

}  // namespace trireme::cli
