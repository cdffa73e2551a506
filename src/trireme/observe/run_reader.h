// observe/run_reader.h -- reads a run's directory back.
//
// A line that a crash has cut short is tolerated where it is the last, and told in a note; anything else that is wrong
// is an IoError that names file and line, or, when reading leniently, a note.
// Depends on: base, records.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/observe/records.h"

namespace trireme::observe {

struct RunFiles {
  std::filesystem::path dir;
  std::string recipe;  // the text of recipe.toml; empty when there is none
  std::vector<StepRecord> steps;
  std::vector<EventRecord> events;
  std::vector<HashRecord> hashes;
  std::vector<std::string> notes;  // "metrics.jsonl: the last line is cut short"

  /// The events of one kind that count: those that a later "resume" took back are left out.
  std::vector<const EventRecord*> events_of(std::string_view kind) const;
};

enum class Reading : bool {
  kStrict,   ///< a damaged file is an error
  kLenient,  ///< what stands before the damage is kept, and a note tells of it: for pictures
};

/// ConfigError when `dir` is no folder, or holds none of a run's files. A missing or empty file is a note.
RunFiles read_run(const std::filesystem::path& dir, Reading reading = Reading::kStrict);

}  // namespace trireme::observe
