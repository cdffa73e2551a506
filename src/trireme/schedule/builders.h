// schedule/builders.h -- the published schedules, by name.
//
// To add one: write builders/NAME.cpp with a function that gives its Kind, declare it below and list it in
// builders/kinds.cpp; the shared tests, the command line and the comparison then cover it.
// Depends on: schedule, times.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "trireme/schedule/schedule.h"
#include "trireme/schedule/times.h"

namespace trireme::schedule {

/// What to build a schedule for.
struct Shape {
  int ranks = 1;
  int micros = 1;  // micro-batches of one step
  int chunks_per_rank = 1;
  int steps = 1;
  bool recompute = false;   // every forward again before its backward
  int micro_rows = 0;       // sequences of a micro-batch; 0: not known. Halves of one need two
  int update_every = 0;     // micros of an update, for kinds that update after each unless told otherwise (0)
  int clock_distance = 0;   // waves that a virtual worker may be ahead (hetpipe); its name may say it: "hetpipe:2"
  int virtual_workers = 1;  // of hetpipe: pipelines of `ranks` each, in one table
  // Only the kind `list` looks at these:
  Times times = {};        // of one chunk
  int most_in_flight = 0;  // micros that a rank may hold, over all its chunks; 0: as many as 1F1B's first rank
};

/// Where a kind has no formula, or no limits.
inline std::optional<double> no_formula(const Shape&, const Times&) { return std::nullopt; }
inline std::optional<double> no_memory_formula(const Shape&) { return std::nullopt; }
inline std::string takes_any_shape(const Shape&) { return ""; }
/// Why the shape does not have one chunk a rank; or two.
std::string needs_one_chunk(const Shape& shape);
std::string needs_two_chunks(const Shape& shape);

struct Kind {
  std::string_view name;
  std::string_view what;   // a line for lists
  std::string_view from;   // who published it
  int default_chunks = 1;  // for each rank
  /// Its bubble is the idle share over many steps: a rank starts a step before the others have ended the last one.
  bool steady = false;
  /// Ranks update while micros are in flight: the builder makes all steps at once, updates and versions included.
  bool asynchronous = false;
  Schedule (*build)(const Shape& shape) = nullptr;
  /// Why the shape is outside the domain; empty when it is inside.
  std::string (*refuses)(const Shape& shape) = takes_any_shape;
  /// The paper's bubble as a share of all time; `times` are of a rank's share of the model.
  std::optional<double> (*bubble)(const Shape& shape, const Times& times) = no_formula;
  /// The paper's peak of activations on any rank, in micros of a rank's share of the model.
  std::optional<double> (*memory)(const Shape& shape) = no_memory_formula;
  /// The paper's count of weight versions on any rank, or of weight copies for kinds with two directions.
  std::optional<double> (*weights)(const Shape& shape) = no_memory_formula;
};

std::span<const Kind> kinds();
/// "hetpipe" and 2 of "hetpipe:2"; any other name as it is. ConfigError where the number is none.
struct KindName {
  std::string_view kind;
  int clock_distance = 0;
};
KindName split_kind_name(std::string_view name);
/// Throws ConfigError with the nearest name when there is no such kind. "hetpipe:D" is hetpipe.
const Kind& find_kind(std::string_view name);
/// All of a table but its transfers. `kind` may also be "file:PATH"; the file must then fit the shape. Throws
/// ConfigError outside the domain, naming kind and reason.
Schedule build(std::string_view kind, const Shape& shape);
/// A schedule from a file in either form, as it is written. Throws IoError, ConfigError.
Schedule read_file(const std::string& path);

// One a file.
Kind gpipe();
Kind one_f_one_b();
Kind interleaved();
Kind breadth_first();
Kind zb_h1();
Kind zb_h2();
Kind zb_v();
Kind dualpipe();
Kind dualpipe_v();
Kind chimera();
Kind chimera_doubling();
Kind chimera_halving();
Kind pipedream();
Kind pipedream_vsync();
Kind pipedream_2bw();
Kind spectrain();
Kind xpipe();
Kind stale();
Kind list_scheduled();
Kind hetpipe();

// What several of them need.

/// What holds for 1F1B that never flushes: no bubble once it is full, and a micro in flight for each rank.
inline std::optional<double> no_bubble(const Shape&, const Times&) { return 0; }
std::optional<double> unflushed_in_flight(const Shape& shape);

/// An empty table with chunk c on rank c mod ranks: the chunks of a rank lie one turn of all ranks apart.
Schedule looped(std::string_view name, const Shape& shape);
/// An empty table with two chunks a rank, down the ranks and up again: a rank holds chunks r and 2p-1-r.
Schedule folded(std::string_view name, const Shape& shape);
/// An empty table with two routes, down the ranks (0) and up (1): a rank holds chunks r and p-1-r. All micros take
/// route 0 until the builder says otherwise.
Schedule two_way(std::string_view name, const Shape& shape);
/// Of kinds that update after each micro, unless the shape says after how many.
inline int micros_of_update(const Shape& shape) { return shape.update_every > 0 ? shape.update_every : 1; }
/// 1F1B over all steps without a flush, with reductions and updates after every `update_every` micros.
Schedule unflushed(std::string_view name, const Shape& shape, int update_every, WeightChoice weights);
/// idle / (idle + work) where every rank works on all micros of a step, and idles for `idle`.
double idle_share(double idle, const Shape& shape, const Times& times);

}  // namespace trireme::schedule
