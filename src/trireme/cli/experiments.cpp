// trireme experiments: sweeps that are running or were run.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/new_file.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/cli/sweep_run.h"
#include "trireme/experiment/store.h"
#include "trireme/experiment/trial_run.h"
#include "trireme/observe/mlflow.h"
#include "trireme/observe/run_import.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using experiment::ExperimentFolder;

/// A command with folders, and what it does with them.
template <typename Flags>
void add_folders_command(Command& experiments, Context& context, const std::string& name, const std::string& about,
                         std::function<void(Command&, Flags&)> more, std::function<int(Flags&)> then) {
  Command& command = experiments.add_subcommand(name, about);
  const auto flags = std::make_shared<Flags>();  // shared with the callback
  command.add_option("DIR", flags->folders, "Folders of experiments").required();
  if (more) more(command, *flags);
  command.callback([flags, then, &context] { context.run = [flags, then] { return then(*flags); }; });
}

enum class ExportFormat : std::uint8_t { kCsv, kMlflow };
enum class ImportFormat : std::uint8_t { kFolders, kMlflow, kWandb };

struct FolderFlags {
  std::vector<std::string> folders;
  std::string output, store;
  ExportFormat format = ExportFormat::kCsv;
  ImportFormat import_format = ImportFormat::kFolders;
  SlotFlags slots;
};

int list_experiments(const std::string& store, Context& context) {
  if (!fs::exists(store)) {
    fmt::print(context.out, "there is no store {}; trireme experiments import DIR... makes it\n", store);
    return kExitFine;
  }
  TextTable table({{"experiment"},
                   {"search"},
                   {"state"},
                   {"trials", TextTable::Align::kRight},
                   {"best", TextTable::Align::kRight},
                   {"loss", TextTable::Align::kRight},
                   {"folder"}});
  for (const experiment::ExperimentRow& row : experiment::Store(store).experiments()) {
    table.add({row.name, row.search, row.state, std::to_string(row.trials),
               row.best_trial ? fmt::format("trial {}", *row.best_trial) : "-",
               row.best_loss ? fmt::format("{:.4f}", *row.best_loss) : "-", row.folder});
  }
  fmt::print(context.out, "{}", table.rows() == 0 ? std::string("no experiments\n") : table.text());
  return kExitFine;
}

int ask_experiments(const FolderFlags& flags, experiment::Wanted wanted, const char* done, Context& context) {
  for (const std::string& path : flags.folders) {
    const ExperimentFolder folder(path);
    folder.read();
    if (!folder.is_locked() && experiment::overview_of(folder).state == experiment::ExperimentState::kDone) {
      fmt::print(context.out, "{}: it is done; there is nothing that could be {}\n", path, done);
      continue;
    }
    folder.want(wanted);
    fmt::print(
        context.out, "{}: {}\n", path,
        folder.is_locked() ? fmt::format("asked to be {}; its trials save first", done) : fmt::format("{}", done));
  }
  return kExitFine;
}

/// Runs of other tools become run folders, which everything here reads: dashboard, report, diff, export.
int import_foreign_runs(const FolderFlags& flags, Context& context) {
  const fs::path out = flags.output.empty() ? "runs" : flags.output;
  std::vector<observe::ImportedRun> runs;
  for (const std::string& path : flags.folders) {
    if (flags.import_format == ImportFormat::kMlflow) {
      for (observe::ImportedRun& run : observe::import_mlflow(path, out)) runs.push_back(std::move(run));
    } else {
      runs.push_back(observe::import_wandb(path, out));
    }
  }
  for (const observe::ImportedRun& run : runs) {
    fmt::print(context.out, "{}: {}{}\n", run.folder.string(), counted(static_cast<std::size_t>(run.steps), "step"),
               run.left_out.empty() ? "" : fmt::format("; left out: {}", fmt::join(run.left_out, ", ")));
  }
  fmt::print(context.out, "{} in {}; see them with: trireme dashboard {}\n", counted(runs.size(), "run"), out.string(),
             out.string());
  return kExitFine;
}

int import_experiments(const FolderFlags& flags, Context& context) {
  if (flags.import_format != ImportFormat::kFolders) return import_foreign_runs(flags, context);
  const fs::path file = flags.store.empty() ? experiment::store_beside(flags.folders.front()) : fs::path(flags.store);
  experiment::Store store(file);
  for (const std::string& path : flags.folders) store.import(overview_of(ExperimentFolder(path)));
  fmt::print(context.out, "{} in {}\n", counted(flags.folders.size(), "experiment"), file.string());
  return kExitFine;
}

/// Experiments with their trials; other runs as an experiment with the name of the folder that they lie in.
int export_to_mlflow(const FolderFlags& flags, Context& context) {
  const fs::path store = flags.output.empty() ? "mlruns" : flags.output;
  std::size_t runs = 0;
  for (const std::string& path : flags.folders) {
    const ExperimentFolder folder(path);
    observe::MlflowExperiment out;
    if (folder.holds_an_experiment()) {
      const experiment::Overview overview = overview_of(folder);
      out.name = overview.experiment.name;
      for (const experiment::TrialView& trial : overview.trials) {
        if (fs::exists(trial.run / "events.jsonl"))
          out.runs.push_back({.name = fmt::format("trial {}", trial.trial), .folder = trial.run});
      }
    } else {
      const fs::path run = fs::absolute(path).lexically_normal();
      out = {.name = run.parent_path().filename().string(), .runs = {{.name = run.filename().string(), .folder = run}}};
    }
    runs += out.runs.size();
    observe::write_mlflow(store, out);
  }
  fmt::print(context.out, "{} in {}; see them with: mlflow ui --backend-store-uri {}\n", counted(runs, "run"),
             store.string(), store.string());
  return kExitFine;
}

int export_experiments(const FolderFlags& flags, Context& context) {
  if (flags.format == ExportFormat::kMlflow) return export_to_mlflow(flags, context);
  std::string text;
  for (const std::string& path : flags.folders) text += csv_text(overview_of(ExperimentFolder(path)));
  if (flags.output.empty()) {
    fmt::print(context.out, "{}", text);
  } else {
    write_text_file(flags.output, text);
  }
  return kExitFine;
}

}  // namespace

void add_experiments_command(Command& app, Context& context) {
  Command& experiments =
      app.add_subcommand("experiments", "Sweeps: list, show, pause, resume, stop, best, export, import");
  experiments.require_subcommand(1);
  struct ListFlags {
    std::string store = "runs/experiments.db";
  };
  Command& list = experiments.add_subcommand("list", "All experiments of a store");
  const auto list_flags = std::make_shared<ListFlags>();
  list.add_option("--store", list_flags->store, "the store of experiments");
  list.callback([list_flags, &context] {
    context.run = [list_flags, &context] { return list_experiments(list_flags->store, context); };
  });
  add_folders_command<FolderFlags>(experiments, context, "show", "Every trial, the best first", {},
                                   [&context](FolderFlags& flags) {
                                     for (const std::string& path : flags.folders) {
                                       const auto overview = overview_of(ExperimentFolder(path));
                                       fmt::print(context.out, "{}{}", table_text(overview), best_text(overview));
                                     }
                                     return int{kExitFine};
                                   });
  add_folders_command<FolderFlags>(experiments, context, "pause", "Save every trial and end the sweep; resume goes on",
                                   {}, [&context](FolderFlags& flags) {
                                     return ask_experiments(flags, experiment::Wanted::kPaused, "paused", context);
                                   });
  add_folders_command<FolderFlags>(experiments, context, "stop", "Save every trial and end the sweep for good", {},
                                   [&context](FolderFlags& flags) {
                                     return ask_experiments(flags, experiment::Wanted::kStopped, "stopped", context);
                                   });
  add_folders_command<FolderFlags>(
      experiments, context, "resume", "Go on with sweeps that were paused, stopped or killed; several share the slots",
      [](Command& command, FolderFlags& flags) { flags.slots.add_to(command); },
      [&context](FolderFlags& flags) {
        for (const std::string& path : flags.folders) {
          if (flags.slots.slurm) break;
          const ExperimentFolder folder(path);
          experiment::check_gpus_of_slots(folder.recipe(), folder.read().sets, flags.slots.slots.value_or(1),
                                          experiment::gpus_here());
        }
        return run_experiments({flags.folders.begin(), flags.folders.end()}, flags.slots, context);
      });
  add_folders_command<FolderFlags>(experiments, context, "best", "The best trial, its setting and its run", {},
                                   [&context](FolderFlags& flags) {
                                     for (const std::string& path : flags.folders) {
                                       fmt::print(context.out, "{}", best_text(overview_of(ExperimentFolder(path))));
                                     }
                                     return int{kExitFine};
                                   });
  add_folders_command<FolderFlags>(
      experiments, context, "export",
      "Trials with their settings and losses as CSV, or runs with all curves for MLflow",
      [](Command& command, FolderFlags& flags) {
        command
            .add_option("-o,--output", flags.output, "a file instead of the terminal; for MLflow the folder (mlruns)")
            .type_name("FILE");
        add_choice<ExportFormat>(command, "--format", flags.format,
                                 {{"csv", ExportFormat::kCsv}, {"mlflow", ExportFormat::kMlflow}},
                                 "csv: a row a trial; mlflow: files that MLflow reads, of experiments or single runs");
      },
      [&context](FolderFlags& flags) { return export_experiments(flags, context); });
  add_folders_command<FolderFlags>(
      experiments, context, "import",
      "Put experiments into the store again, from their folders; or make run folders of runs of MLflow or W&B",
      [](Command& command, FolderFlags& flags) {
        add_choice<ImportFormat>(
            command, "--format", flags.import_format,
            {{"folders", ImportFormat::kFolders}, {"mlflow", ImportFormat::kMlflow}, {"wandb", ImportFormat::kWandb}},
            "what DIR is: folders of experiments; MLflow's stores of files (mlruns); files of W&B's "
            "history, a JSON object a line");
        command.add_option("-o,--output", flags.output, "runs of MLflow or W&B go into this folder (runs)")
            .type_name("DIR");
        command.add_option("--store", flags.store, "the store; default: experiments.db beside the first folder");
      },
      [&context](FolderFlags& flags) { return import_experiments(flags, context); });
}

}  // namespace trireme::cli
