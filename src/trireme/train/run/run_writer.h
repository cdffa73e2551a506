// train/run/run_writer.h -- what a run tells: metrics, events and hashes in its folder, and progress for people.
//
// Rank 0 writes what is of the whole run. Every rank writes what it measured of its own steps (observe/rank_log.h).
// Depends on: checkpoint, observe, saving, trainer.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "trireme/base/progress.h"
#include "trireme/checkpoint/run_folder.h"
#include "trireme/observe/mfu.h"
#include "trireme/observe/rank_log.h"
#include "trireme/observe/run_log.h"
#include "trireme/observe/timeline.h"
#include "trireme/train/commands.h"
#include "trireme/train/engine/trainer.h"
#include "trireme/train/run/saving.h"

namespace trireme::train {

// The recipe as it runs: nothing left to be found out, nothing that depends on where it was started.

/// Every key of the model, threads, absolute paths. What recipe.toml in the run's folder says.
spec::Recipe effective_recipe(const RunRequest& request, const spec::ModelShape& shape);

/// What may lie beside a tokenizer.json and belongs to it: roles of tokens, the chat template.
inline constexpr std::array<std::string_view, 4> kTokenizerFiles = {"tokenizer_config.json", "special_tokens_map.json",
                                                                    "added_tokens.json", "chat_template.jinja"};

/// The tokenizer.json that the data was made with; none for bytes and where nothing was said.
std::optional<std::filesystem::path> tokenizer_file(const spec::DataConfig& data);

class RunWriter {
 public:
  struct Parts {
    const RunRequest& request;
    const spec::Recipe& recipe;  ///< as it runs
    checkpoint::RunFolder folder;
    comm::Rank& rank;
    Trainer& trainer;
    const data::Samples& samples;
    observe::Timeline& timeline;
    Saving& saving;  ///< is told where to log
  };
  explicit RunWriter(const Parts& parts) : parts_(parts) {}

  /// Begins to write, and says what is going to run up to step `last`. `from_step`: the checkpoint's that the run goes
  /// on from; -1: none. Before anything else of this class.
  void open(std::int64_t from_step, std::int64_t last);
  void event(std::string_view kind, observe::Json fields);
  struct StepFigures {
    std::int64_t memory = 0;      ///< bytes, of the rank with most
    std::int64_t own_memory = 0;  ///< of this rank
    double seconds = 0;           ///< by the clock; the report knows better where steps ran together
    std::optional<std::vector<nn::HashShare>> hashes = {};
  };
  void step(const StepReport& report, const StepFigures& figures);
  /// What came after this step belongs to a course that is given up.
  void cut_after(std::int64_t step);

 private:
  bool writes() const { return parts_.rank.rank() == 0; }
  /// The step as this rank measured it, to its own file and to whoever traces the run.
  void tell_metrics(const StepReport& report, const StepFigures& figures,
                    const std::vector<observe::NamedQueue>& queues);
  /// Bytes that this rank has sent to others since the process began, by group and collective, told to `tell`.
  void tell_traffic(const std::function<void(std::string_view name, double value)>& tell);
  /// This rank's queues since the last call.
  std::vector<observe::NamedQueue> take_queues();
  void introduce(std::int64_t last, const std::string& family, std::int64_t parameters);

  Parts parts_;
  double predicted_gain_s_ = 0, measured_gain_s_ = 0;  // by compression, so far
  std::unique_ptr<observe::RunLog> log_;
  std::unique_ptr<observe::RankLog> rank_log_;
  std::unique_ptr<Progress> progress_;
  std::optional<observe::Mfu> mfu_;          // where this rank writes
  std::vector<observe::NamedQueue> queues_;  // as they were read last
  parallel::MeshGroups* groups_ = nullptr;   // the engine's; null: it has none
};

}  // namespace trireme::train
