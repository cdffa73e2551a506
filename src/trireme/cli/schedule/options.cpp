#include "trireme/cli/schedule/options.h"

#include <fmt/format.h>

#include <fstream>
#include <ostream>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/schedule/check.h"
#include "trireme/schedule/interleave.h"
#include "trireme/schedule/passes.h"

namespace trireme::cli {

void ScheduleOptions::add_to(Command& command, Kind kind) {
  if (kind == Kind::kOne)
    command.add_option("--kind", kind_, "A name from `trireme schedule list`, or file:PATH").required();
  command.add_option("--stages", stages_, "Pipeline stages (ranks); default 4").within(1, 4096).type_name("N");
  command.add_option("--microbatches", micros_, "Micro-batches of a step; default 8").within(1, 65536).type_name("N");
  command
      .add_option(
          "--virtual-stages", chunks_,
          "Virtual stages (model chunks) of each rank; default: the kind's own, as `trireme schedule list` says")
      .within(1, 256)
      .type_name("N");
  command
      .add_option(
          "--times", times_,
          "Times of a rank's share of the model: f forward, b input gradients, w weight gradients, r recompute, fb "
          "an overlapped pair, g reduction, o update, s stash, p prediction, link a message, x rows of a mixture on "
          "their way, e the experts' share of a pass; default f=1,b=1,w=1,e=0.5")
      .type_name("f=1,b=1,w=1");
  command
      .add_option("--hold", most_in_flight_,
                  "For the kind list: micro-batches whose activations of a chunk a rank may have saved; default: as "
                  "many as 1f1b "
                  "needs")
      .within(1, 1 << 20)
      .type_name("N");
  if (kind == Kind::kNone) return;
  command.add_option("--steps", steps_, "Steps without a pipeline flush between them; default 1")
      .within(1, 4096)
      .type_name("N");
  command
      .add_option("--virtual-workers", virtual_workers_,
                  "Of the kind hetpipe: pipelines of so many stages each that push and pull waves; default 1")
      .within(1, 1024)
      .type_name("N");
  command
      .add_option(
          "--mixtures", mixtures_,
          "Mixtures of experts in each chunk whose rows travel between ranks: overlapped pairs are then in parts, "
          "and transfers are written; default 0")
      .within(0, 1024)
      .type_name("N");
  command.add_flag("--recompute", recompute_, "Full activation recomputation: every forward again before its backward");
}

schedule::Shape ScheduleOptions::shape(const schedule::Kind& kind) const {
  schedule::Shape shape{.ranks = stages_,
                        .micros = micros_,
                        .chunks_per_rank = chunks_ > 0 ? chunks_ : kind.default_chunks,
                        .steps = steps_,
                        .recompute = recompute_,
                        .virtual_workers = virtual_workers_,
                        .most_in_flight = most_in_flight_};
  shape.times = times().scaled(1.0 / shape.chunks_per_rank);
  return shape;
}

schedule::Times ScheduleOptions::times() const { return schedule::parse_times(times_); }

schedule::Schedule ScheduleOptions::build() const {
  constexpr std::string_view kFile = "file:";
  if (kind_.starts_with(kFile)) {
    const schedule::Schedule written = schedule::read_file(kind_.substr(kFile.size()));
    schedule::require_fine(written);
    return schedule::has_updates(written) ? written : schedule::add_updates(written);
  }
  const schedule::Schedule table = schedule::build(kind_, shape(schedule::find_kind(kind_)));
  if (mixtures_ == 0) return table;
  return schedule::interleave_pairs(schedule::complete(table),
                                    std::vector<int>(static_cast<std::size_t>(table.chunks()), mixtures_));
}

void write_result(const std::string& text, const std::string& path, Context& context) {
  if (path.empty() || path == "-") {
    context.out << text;
    return;
  }
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw IoError(fmt::format("could not write {}", path), "does its folder exist, and is there room?");
  log_info("wrote {}", path);
}

}  // namespace trireme::cli
