// observe/records.h -- the lines of a run's files as values, and as JSON: the one place that knows their fields.
//
// docs/runs.md describes them. Reading asks for every field that was always written and ignores those it does not know,
// so that older readers read newer runs.
// Depends on: base, json_values.
#pragma once

#include <map>
#include <vector>

#include "trireme/base/json_value.h"
#include "trireme/observe/json_values.h"
#include "trireme/observe/step_record.h"

namespace trireme::observe {

/// One line of hashes.jsonl: the state after a step, whole and tensor by tensor.
struct HashRecord {
  std::int64_t step = 0;
  std::uint64_t total = 0;
  std::map<std::string, std::uint64_t> tensors;
  bool operator==(const HashRecord&) const = default;
};

/// One line of ranks/RANK.jsonl: what one rank measured of one step, by name.
struct RankRecord {
  std::int64_t step = 0;
  std::map<std::string, double> metrics;
  bool operator==(const RankRecord&) const = default;
};

/// One line of events.jsonl.
struct EventRecord {
  std::string kind;  // "start", "resume", "eval", "checkpoint", "stop"
  double time = 0;   // seconds since 1970
  JsonValue fields;  // an object with all fields, those two included

  /// nothing where the field is missing or of another type
  std::optional<double> number_of(std::string_view name) const;
  std::optional<std::string> text_of(std::string_view name) const;
  std::optional<std::int64_t> step() const;
};

Json to_json(const StepRecord& record);

/// IoError that names the field when one is missing or has the wrong type.
StepRecord step_from(const Json& line);
RankRecord rank_from(const Json& line);
HashRecord hashes_from(const Json& line);
EventRecord event_from(const Json& line);

}  // namespace trireme::observe
