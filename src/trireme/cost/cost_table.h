// cost/cost_table.h -- what communication costs on this machine: constants for each transport, and the choice they lead
// to.
//
// Defaults are plausible, not right; `trireme bench comm --calibrate` measures and writes a file of the same form.
// `auto` chooses by this table alone, never by the clock of the running job, so all ranks choose alike and a rerun
// repeats it.
// Depends on: base.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/cost/collectives.h"

namespace trireme::cost {

/// Constants of one algorithm for one operation, fitted to measurements of that very pair.
struct Measured {
  double alpha = 0;  ///< seconds a round
  double beta = 0;   ///< seconds a byte
  bool operator==(const Measured&) const = default;
};

struct TransportCost {
  Links links;
  /// What has an entry here is priced with it. An algorithm with a formula takes its alpha and beta instead of the
  /// link's; kDirect and kNative, of whose inside we know nothing, take
  /// ceil(lg p) alpha + wire_bytes() beta, and without an entry do not exist.
  std::map<std::pair<Algorithm, Collective>, Measured> measured = {};

  /// Seconds for one call; infinite where there is no such algorithm. Bytes as in collectives.h.
  double predict(Collective op, Algorithm algorithm, const Topology& topology, double bytes) const;
};

class CostTable {
 public:
  CostTable();  // the defaults

  /// "threads", "mpi", "ucx" or "emulated"; a ConfigError names them when it is none of these.
  const TransportCost& of(std::string_view transport) const;
  TransportCost& of(std::string_view transport);

  const std::map<std::string, TransportCost, std::less<>>& transports() const { return transports_; }

 private:
  std::map<std::string, TransportCost, std::less<>> transports_;
};

/// The cheapest of the candidates, the first of them among equals. Pure: the same on every rank.
Algorithm choose(Collective op, const Topology& topology, double bytes, std::span<const Algorithm> candidates,
                 const TransportCost& costs);

/// TOML; what the text does not mention keeps its default. Unknown keys, missing constants and numbers that cannot be
/// costs are ConfigErrors naming `source`, line and key.
CostTable parse_cost_table(std::string_view text, const std::string& source);
CostTable read_cost_table(const std::filesystem::path& path);
std::string to_text(const CostTable& table);
/// Readers see the old file or the new one, never half of it.
void write_cost_table(const CostTable& table, const std::filesystem::path& path);

}  // namespace trireme::cost
