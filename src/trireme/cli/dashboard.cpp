// trireme dashboard: runs and sweeps as a live page.
#include <fmt/format.h>
#include <signal.h>

#include <filesystem>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/mapped_file.h"
#include "trireme/base/print.h"
#include "trireme/base/sha256.h"
#include "trireme/base/text.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/dashboard/dashboard.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;

struct DashboardFlags {
  std::vector<std::string> folders, webhooks, allowed_hosts;
  std::string host = "127.0.0.1", token, token_file, webhook_secret_file;
  int port = 8265, slots = 1;
};

std::string secret_in(const std::string& file) {
  const std::string text(trimmed(read_text_file(file, 4 << 10)));
  if (text.empty())
    throw ConfigError(fmt::format("{} is empty", file),
                      fmt::format("write a secret into it: openssl rand -hex 24 > {}", file));
  return text;
}

std::vector<fs::path> roots_of(const DashboardFlags& flags) {
  if (flags.folders.empty()) return {fs::is_directory("runs") ? fs::path("runs") : fs::path(".")};
  std::vector<fs::path> roots;
  for (const std::string& folder : flags.folders) {
    if (!fs::is_directory(folder))
      throw ConfigError(fmt::format("there is no folder {}", folder), "name folders that hold runs, such as runs");
    roots.emplace_back(folder);
  }
  return roots;
}

int serve_dashboard(const DashboardFlags& flags, Context& context) {
  // Before any thread is made, so that all of them leave the signals to us.
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGINT);
  sigaddset(&ending, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  const std::string token = !flags.token.empty()        ? flags.token
                            : !flags.token_file.empty() ? secret_in(flags.token_file)
                                                        : to_hex(random_bytes(16));
  dashboard::Dashboard page(
      {.roots = roots_of(flags),
       .address = flags.host,
       .port = flags.port,
       .token = token,
       .allowed_hosts = flags.allowed_hosts,
       .control = {.program = fs::read_symlink("/proc/self/exe").string(), .slots = flags.slots},
       .webhook = {.urls = flags.webhooks,
                   .secret = flags.webhook_secret_file.empty() ? "" : secret_in(flags.webhook_secret_file)}});
  page.start();
  // Behind the #, so that browsers do not send it: no log of a proxy has it.
  fmt::print(context.out, "{} and {}: {}/#token={}\n", counted(page.runs(), "run"),
             counted(page.experiments(), "sweep"), page.url(), token);
  context.out.flush();
  int signal = 0;
  sigwait(&ending, &signal);
  log_info("ending the page; runs go on");
  page.drain(std::chrono::seconds(3));
  return kExitFine;
}

}  // namespace

void add_dashboard_command(Command& app, Context& context) {
  Command& command = app.add_subcommand("dashboard", "Runs and sweeps as a live page in the browser");
  command.footer(
      "Looking is free on this machine; pausing, resuming, stopping and saving need the token that the address "
      "printed\n"
      "at the start has in it. From other machines everything needs it: come through an SSH tunnel, or give --host.\n"
      "\n"
      "Examples:\n"
      "  trireme dashboard runs\n"
      "  trireme dashboard runs sweeps --port 9000 --webhook https://example.org/hook --webhook-secret-file "
      "secret.txt");
  const auto flags = std::make_shared<DashboardFlags>();  // shared with the callback
  command.add_option("DIR", flags->folders, "Folders of runs and sweeps; runs, or this folder, when none is given");
  command.add_option("--port", flags->port, "the port; 0: a free one").within(0, 65535).show_default();
  command.add_option("--host", flags->host, "the address to listen at").show_default();
  const Option token = command.add_option("--token", flags->token, "what changes need; a random one when not given");
  command.add_option("--token-file", flags->token_file, "a file that holds it: a command line can be seen by others")
      .type_name("FILE")
      .excludes(token);
  command.add_option("--allowed-host", flags->allowed_hosts, "a further name of this machine, such as a proxy's")
      .type_name("NAME")
      .take_all();
  command.add_option("--slots", flags->slots, "slots that a sweep gets when it is resumed on the page")
      .positive()
      .show_default();
  command.add_option("--webhook", flags->webhooks, "an address that is told of alerts and of what is done")
      .type_name("URL")
      .take_all();
  command.add_option("--webhook-secret-file", flags->webhook_secret_file, "secret that signs alerts (HMAC-SHA256)")
      .type_name("FILE");
  command.callback([flags, &context] { context.run = [flags, &context] { return serve_dashboard(*flags, context); }; });
}

}  // namespace trireme::cli
