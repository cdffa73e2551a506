// trireme doctor: what this machine has, what will be used, what is missing, and a short test of it.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/version.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/doctor/doctor.h"
#include "trireme/cli/program.h"
#include "trireme/spec/recipe.h"

namespace trireme::cli {
namespace {

using enum Finding::State;

struct CheckedPart {
  std::string title;
  std::vector<Finding> findings;
};

const char* word_of(Finding::State state) {
  switch (state) {
    case kFine:
      return "ok";
    case kNote:
      return "note";
    case kMissing:
      return "none";
    case kFatal:
      return "FAILS";
  }
  return "";
}

std::vector<std::string> lacking(const std::vector<CheckedPart>& parts) {
  std::vector<std::string> out;
  for (const CheckedPart& part : parts) {
    for (const Finding& finding : part.findings) {
      if (finding.state == kFatal) out.push_back(finding.topic);
    }
  }
  return out;
}

void print(std::ostream& out, const std::vector<CheckedPart>& parts, int threads) {
  constexpr std::size_t kColumns = 110;
  for (const CheckedPart& part : parts) {
    std::size_t width = 0;
    for (const Finding& finding : part.findings) width = std::max(width, columns_of(finding.topic));
    fmt::print(out, "{}\n", part.title);
    for (const Finding& finding : part.findings) {
      const std::string margin = fmt::format("\n{:{}}", "", width + 11);
      const auto lines = wrapped(finding.text, kColumns - width - 11);
      fmt::print(out, "  {:<{}}  {:<5}  {}\n", finding.topic, width, word_of(finding.state), fmt::join(lines, margin));
      if (finding.remedy.empty()) continue;
      fmt::print(out, "{:{}}-> {}\n", "", width + 11,
                 fmt::join(wrapped(finding.remedy, kColumns - width - 14), margin + "   "));
    }
    out << '\n';
  }
  const auto missing = lacking(parts);
  if (missing.empty()) {
    fmt::print(out, "Training is possible here: on the processor, with {}.\n",
               counted(static_cast<std::size_t>(threads), "thread"));
  } else {
    fmt::print(out, "Training is not possible here: see {}.\n", listed(missing));
  }
}

nlohmann::ordered_json to_json(const std::vector<CheckedPart>& parts, const std::optional<SelfTest>& test,
                               int threads) {
  nlohmann::ordered_json out{{"version", kVersion},
                             {"training_possible", lacking(parts).empty()},
                             {"threads", threads},
                             {"findings", nlohmann::ordered_json::array()}};
  for (const CheckedPart& part : parts) {
    for (const Finding& finding : part.findings) {
      out["findings"].push_back({{"topic", finding.topic},
                                 {"state", word_of(finding.state)},
                                 {"text", finding.text},
                                 {"remedy", finding.remedy}});
    }
  }
  if (!test) return out;
  const auto or_null = [](const std::optional<double>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  out["test"] = {{"threads", test->threads},
                 {"memory_bytes_per_s", test->memory_bytes_per_second},
                 {"all_reduce_ranks", test->ranks},
                 {"all_reduce_bytes", test->all_reduce_bytes},
                 {"all_reduce_seconds", test->all_reduce_seconds},
                 {"fp32_flops", or_null(test->fp32_flops)},
                 {"bf16_flops", or_null(test->bf16_flops)},
                 {"share_of_time", test->share}};
  return out;
}

struct DoctorOptions {
  bool json = false, no_test = false;
  int threads = 0;
  std::string run_folder = spec::RunConfig{}.out;
};

int run_doctor(const DoctorOptions& options, std::ostream& out) {
  const observe::Machine machine = observe::this_machine();
  const int threads = options.threads > 0 ? options.threads : usable_threads(machine);
  const LoadedRuntime runtime = load_runtime();
  std::vector<CheckedPart> parts{{"Machine", check_machine(machine, options.run_folder)},
                                 {"Libraries and launchers", check_libraries(machine, runtime)},
                                 {"Environment variables", check_environment()}};
  std::optional<SelfTest> test;
  if (!options.no_test) {
    test = test_machine(threads, runtime);
    parts.push_back({"Test", check_test(*test)});
  }
  if (options.json) {
    fmt::print(out, "{}\n",
               to_json(parts, test, threads).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    print(out, parts, threads);
  }
  return lacking(parts).empty() ? kExitFine : kExitFailed;
}

}  // namespace

void add_doctor_command(Command& app, Context& context) {
  Command& doctor =
      app.add_subcommand("doctor",
                         "Say what this machine has, what is missing and how to get it, and test it for about five "
                         "seconds; exit code 0 when training is possible here, 1 when it is not");
  const auto options = std::make_shared<DoctorOptions>();  // shared with the callback, which outlives this function
  doctor.add_flag("--json", options->json, "As JSON");
  doctor.add_flag("--no-test", options->no_test, "Only look: measure nothing");
  doctor.add_option("--threads", options->threads, "Threads to test with; default: the processors that may be used")
      .positive();
  doctor.add_option("--out", options->run_folder, "Folder that runs will be written to")
      .type_name("FOLDER")
      .show_default();
  doctor.callback(
      [&context, options] { context.run = [&context, options] { return run_doctor(*options, context.out); }; });
}

}  // namespace trireme::cli
