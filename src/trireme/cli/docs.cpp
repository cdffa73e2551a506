// trireme docs: every command with its options as one Markdown page, from which docs/commands.md is made.
#include <fmt/format.h>

#include <ostream>

#include "trireme/base/env.h"
#include "trireme/base/text.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"

namespace trireme::cli {
namespace {

constexpr std::size_t kPageColumns = 116;
constexpr const char* kPageHead = R"(<!-- Made by `make docs` from the program; do not edit. -->
# Commands

Every command with its options, as `--help` prints them. Keys that `--set` takes: [recipe keys](recipe.md). Terms:
[glossary](glossary.md).
)";

/// "- `--gpus INT`: text", in lines that fit.
std::string list_item(const std::string& code, const std::string& text) {
  return fmt::format("{}\n", fmt::join(wrapped(fmt::format("- `{}`: {}", code, text), kPageColumns), "\n  "));
}

std::string command_text(const CommandDoc& command) {
  std::string out = fmt::format("\n## `{}`\n\n", command.name);
  // The program's own description has lines that are aligned by hand.
  const bool aligned = command.about.find('\n') != std::string::npos;
  out += aligned ? fmt::format("```text\n{}\n```\n", command.about)
                 : fmt::format("{}\n", fmt::join(wrapped(command.about, kPageColumns), "\n"));
  if (!command.options.empty()) out += '\n';
  for (const OptionDoc& option : command.options) {
    out += list_item(option.value.empty() ? option.names : fmt::format("{} {}", option.names, option.value),
                     option.meaning);
  }
  if (!command.footer.empty()) out += fmt::format("\n```text\n{}\n```\n", trimmed(command.footer));
  return out;
}

std::string commands_page(std::vector<CommandDoc> commands) {
  std::string out = kPageHead;
  commands.front().footer.clear();  // the environment, which has a section of its own
  for (const CommandDoc& command : commands) out += command_text(command);
  out += "\n## Environment variables\n\n";
  for (const EnvVariable& variable : env_table())
    out += list_item(std::string(variable.name), std::string(variable.meaning));
  return out;
}

}  // namespace

void add_docs_command(Command& app, Context& context) {
  Command& command =
      app.add_subcommand("docs", "Print every command with its options, as a Markdown page: docs/commands.md");
  command.callback([&app, &context] {
    context.run = [&app, &context] {
      context.out << commands_page(app.docs());
      return kExitFine;
    };
  });
}

}  // namespace trireme::cli
