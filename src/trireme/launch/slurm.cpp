// Slurm: a batch script for sbatch. It asks to be signalled before the time limit, lets the run save, and requeues
// itself; a start after a requeue resumes. A sweep is an array.
#include <fmt/format.h>

#include "trireme/base/text.h"
#include "trireme/launch/launcher.h"
#include "trireme/launch/quote.h"

namespace trireme::launch {
namespace {

namespace fs = std::filesystem;

/// "1-02:03:04", as --time wants it.
std::string slurm_time(std::chrono::seconds time) {
  const auto total = time.count();
  return fmt::format("{}{:02}:{:02}:{:02}", total >= 86400 ? fmt::format("{}-", total / 86400) : "",
                     total % 86400 / 3600, total % 3600 / 60, total % 60);
}

/// sbatch replaces %j and the like in file names.
std::string without_patterns(const fs::path& path) {
  std::string out;
  for (const char letter : path.string()) out += letter == '%' ? "%%" : std::string(1, letter);
  return out;
}

class Slurm final : public Launcher {
 public:
  std::string name() const override { return "slurm"; }
  std::string value() const override { return {}; }
  std::string meaning() const override { return "submit a batch job to Slurm (sbatch)"; }
  std::vector<Setting> settings() const override {
    return {{"partition", "NAME", "Slurm partition", ""},
            {"account", "NAME", "Slurm account", ""},
            {"qos", "NAME", "Slurm quality of service", ""},
            {"time", "DURATION", "time limit of the job, e.g. 4h; default: the partition's", ""},
            {"signal", "DURATION", "how long before the time limit the run is told to save and is requeued", "120s"},
            {"mpi", "TYPE", "srun's --mpi: pmix for ranks that talk over MPI, none for others", "pmix"},
            {"sbatch", "OPTION", "one more option of sbatch, without its dashes: constraint=h100", ""}};
  }

  std::vector<config::Problem> find_problems(const Job& job, const Settings& settings) const override {
    std::vector<config::Problem> problems;
    const double before = static_cast<double>(settings.seconds("signal").count());
    if (before < job.grace_seconds) {
      problems.push_back(
          {.key = "--signal",
           .reason = fmt::format("{:.0f} s before the time limit are less than checkpoint.grace, the {:.0f} "
                                 "s that a run may take to save",
                                 before, job.grace_seconds),
           .hint = fmt::format("--signal {:.0f}s, or lower checkpoint.grace", job.grace_seconds + 60)});
    }
    if (!settings.text("time").empty() && settings.seconds("time") <= settings.seconds("signal")) {
      problems.push_back({.key = "--time",
                          .reason = "the job would be signalled as soon as it starts",
                          .hint = "give it more time than --signal"});
    }
    // Over MPI they get one from rank 0. Else each would find out by itself, hours later.
    if (job.nodes > 1 && settings.text("mpi") == "none" && token_file(job).empty()) {
      problems.push_back({.key = "--mpi",
                          .reason = "ranks on several nodes without MPI meet only with a token that all of them know",
                          .hint = "umask 077; head -c 32 /dev/urandom | base64 >token; export "
                                  "TRIREME_TOKEN_FILE=$PWD/token, where all nodes see it; or --mpi pmix"});
    }
    if (job.nodes * job.ranks_per_node != job.ranks && job.nodes > 1) {
      problems.push_back(
          {.key = "--ranks-per-node",
           .reason = fmt::format("{} nodes of {} ranks are not {} ranks", job.nodes, job.ranks_per_node, job.ranks),
           .hint = "give --nodes and --ranks-per-node whose product is the number of ranks"});
    }
    return problems;
  }

  Submission prepare(const Job& job, const Settings& settings) const override {
    return {.text = header(job, settings) + body(job, settings), .command = {"sbatch"}, .processes = {}};
  }

 private:
  static std::string header(const Job& job, const Settings& settings) {
    std::string out = "#!/bin/bash\n";
    const auto line = [&out](std::string_view option, std::string_view value) {
      if (!value.empty()) out += fmt::format("#SBATCH --{}={}\n", option, sbatch_value(value));
    };
    line("job-name", job.name);
    line("nodes", std::to_string(job.nodes));
    line("ntasks", std::to_string(job.ranks));
    line("ntasks-per-node", std::to_string(job.ranks_per_node));
    if (job.cores_per_rank > 0) line("cpus-per-task", std::to_string(job.cores_per_rank));
    if (job.gpus) line("gpus-per-node", std::to_string(job.ranks_per_node));
    for (const char* option : {"partition", "account", "qos"}) line(option, settings.text(option));
    if (!settings.text("time").empty()) line("time", slurm_time(settings.seconds("time")));
    if (!job.sweep.empty()) line("array", fmt::format("0-{}", job.sweep.size() - 1));
    out += fmt::format("#SBATCH --requeue\n#SBATCH --signal=B:USR1@{}\n#SBATCH --open-mode=append\n",
                       settings.seconds("signal").count());
    line("output", without_patterns(fs::absolute(job.folder / job.out)) +
                       (job.sweep.empty() ? "/slurm-%j.out" : "/slurm-%A_%a.out"));
    if (!settings.text("sbatch").empty()) {
      if (settings.text("sbatch").find_first_of("\n\r") != std::string::npos)
        throw ConfigError("--sbatch holds a line break", "give one option");
      out += fmt::format("#SBATCH --{}\n", settings.text("sbatch"));
    }
    return out;
  }

  static std::string body(const Job& job, const Settings& settings) {
    std::string out =
        fmt::format("# Written by trireme launch --slurm.\ncd {} || exit 2\n", sh_word(job.folder.string()));
    for (const auto& [name, value] : job.environment) out += fmt::format("export {}={}\n", name, sh_word(value));
    const std::vector<std::string> train = train_words(job);
    out += fmt::format("set -- {}\n", sh_line(train));
    if (job.sweep.empty()) {
      out += fmt::format("run={}\n", sh_word(job.out.string()));
    } else {
      out += "case $SLURM_ARRAY_TASK_ID in\n";
      for (std::size_t i = 0; i < job.sweep.size(); ++i) {
        std::vector<std::string> more;
        for (const std::string& set : job.sweep[i].sets) more.insert(more.end(), {"--set", set});
        more.insert(more.end(), {"--out", job.sweep[i].out.string()});
        std::string words;
        for (const std::string& word : more) words += " " + sh_word(word);
        out += fmt::format("  {}) run={}; set -- \"$@\"{} ;;\n", i, sh_word(job.sweep[i].out.string()), words);
      }
      out += "esac\n";
    }
    out += R"(restarts=${SLURM_RESTART_COUNT:-0}
submitted=$(squeue -h -j "$SLURM_JOB_ID" -o %V) && submitted=$(date -d "$submitted" +%s) &&
  echo "job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, restart $restarts, $(($(date +%s) - submitted)) s after it was submitted"
)";
    if (!job.resume) out += "[ \"$restarts\" -eq 0 ] || set -- \"$@\" --resume\n";
    out += "mkdir -p \"$run\" && rm -f \"$run/stop\" || exit 1\n";
    if (job.nodes > 1) out += shared_folder_check();
    // A run saves and ends with 130 when a file RUN/stop appears. SIGTERM would not do: srun takes it as the wish to
    // kill all tasks.
    out += R"(limit= again=
trap 'again=yes limit=yes; touch "$run/stop"' USR1
trap 'again=yes; touch "$run/stop"' TERM
)";
    // Without srun a single rank is no task of a step, so nothing between ranks is needed. --wait: when some have ended
    // and others hang; they hear of a lost rank by themselves and say so.
    out += job.ranks == 1
               ? "\"$@\" &\n"
               : fmt::format("srun --mpi={} --kill-on-bad-exit=0 --wait=600 \"$@\" &\n", sh_word(settings.text("mpi")));
    out += R"(child=$!
while :; do
  again=
  wait "$child"
  status=$?
  [ -n "$again" ] || break
done
rm -f "$run/stop"
if [ -n "$limit" ] && [ $status -eq 130 ]; then
  echo "the time limit is near: saved, and requeued"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit $status
)";
    return out;
  }

  static std::string shared_folder_check() {
    return R"(mark=$run/.job-$SLURM_JOB_ID
touch "$mark" && srun --mpi=none --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 test -e "$mark" || {
  echo "not every node of $SLURM_JOB_NODELIST sees $run: the run's directory must lie on a file system that all nodes share"
  exit 2
}
rm -f "$mark"
)";
  }
};

}  // namespace

std::unique_ptr<const Launcher> make_slurm() { return std::make_unique<Slurm>(); }

}  // namespace trireme::launch
