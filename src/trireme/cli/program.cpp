#include "trireme/cli/program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <new>
#include <ostream>
#include <sstream>

#include "trireme/base/env.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/version.h"
#include "trireme/cli/commands.h"

namespace trireme::cli {
namespace {

constexpr std::size_t kColumns = 100;  // of help texts

/// CLI11's help with lines that fit, and without what the parser says anyway when it matters ("Excludes: ...").
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_description(const CLI::App* app) const override {
    std::string out;
    for (const std::string& line : split(app->get_description(), '\n')) {
      // Lines that fit keep their spaces: they may be aligned by hand.
      out += columns_of(line) <= kColumns ? line : fmt::format("{}", fmt::join(wrapped(line, kColumns), "\n"));
      out += '\n';
    }
    return out + '\n';
  }
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    const std::string name = make_option_name(option, is_positional);
    const bool takes_value = !is_positional && option->get_items_expected_max() > 0;
    return entry(takes_value ? fmt::format("{} {}", name, option->get_type_name()) : name, help_text(*option));
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return entry(command->get_name(), command->get_description());
  }

 private:
  static std::string entry(const std::string& name, const std::string& meaning) {
    constexpr std::size_t kName = 18;
    const auto lines = wrapped(meaning, kColumns - kName - 4);
    const std::string margin = fmt::format("\n{:{}}", "", kName + 4);
    return fmt::format("  {:<{}}{}{}\n", name, kName, name.size() > kName ? margin : "  ", fmt::join(lines, margin));
  }
};

constexpr const char* kAbout = R"(Trireme trains neural networks across many devices.

  trireme recipe docs                       every key a recipe can have
  trireme check recipes/x.toml              everything that would stop a recipe, before it runs
  trireme COMMAND --help                    what a command does)";

/// The deepest command that was named: "recipe show" of `trireme recipe show --lout`.
CLI::App& deepest(CLI::App& app) {
  CLI::App* at = &app;
  for (auto chosen = at->get_subcommands(); !chosen.empty(); chosen = at->get_subcommands()) at = chosen.front();
  return *at;
}

/// "trireme recipe show".
std::string full_name(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name() : fmt::format("{} {}", full_name(*parent), app.get_name());
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* at = &app; at != nullptr; at = at->get_parent()) {
    for (const CLI::Option* option : at->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  }
  return names;
}

/// What may have been meant by an option: one that is written alike, or one that has all of its words (--tokens of
/// --max-new-tokens).
std::string suggested_option(std::string_view option, const std::vector<std::string>& names) {
  if (const std::string alike = did_you_mean(option, names); !alike.empty() || option.size() < 5) return alike;
  const std::string words = fmt::format("{}-", option.substr(1));  // "-tokens-"
  const auto longer = std::ranges::find_if(names, [&](const std::string& name) {
    return fmt::format("{}-", name.substr(1)).find(words) != std::string::npos;
  });
  return longer == names.end() ? std::string() : fmt::format("; did you mean \"{}\"?", *longer);
}

/// CLI11 knows what is wrong; people also want to know what they probably meant.
ConfigError usage_error(CLI::App& app, const CLI::ParseError& error) {
  CLI::App& at = deepest(app);
  const std::string help = fmt::format("see {} --help", full_name(at));
  const std::vector<std::string> left = app.remaining(true);
  const auto unknown = std::ranges::find_if(left, [](const std::string& word) { return word != "--"; });
  const std::vector<std::string> commands = command_names(at);
  if (unknown == left.end() && !commands.empty() && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    return ConfigError(fmt::format("{} needs a command", full_name(at)),
                       fmt::format("the commands are {}; {}", listed(commands), help));
  }
  if (unknown == left.end()) return ConfigError(error.what(), help);
  if (unknown->starts_with('-')) {
    const std::string option = unknown->substr(0, unknown->find('='));
    return ConfigError(
        fmt::format("{} has no option {}{}", full_name(at), option, suggested_option(option, option_names(at))), help);
  }
  if (!commands.empty()) {
    return ConfigError(
        fmt::format("{} has no command \"{}\"{}", full_name(at), *unknown, did_you_mean(*unknown, commands)),
        fmt::format("the commands are {}; {}", listed(commands), help));
  }
  return ConfigError(fmt::format("{} does not know what to do with \"{}\"", full_name(at), *unknown), help);
}

void set_log_level_from(bool verbose, bool quiet, Context& context) {
  if (const auto level = env("TRIREME_LOG")) {
    context.level_is_set = true;
    set_log_level(with_context("while reading TRIREME_LOG", [&] { return parse_log_level(*level); }));
  }
  if (verbose || quiet) {
    context.level_is_set = true;
    set_log_level(verbose ? LogLevel::kDebug : LogLevel::kWarn);
  }
  for (const EnvVariable& variable : env_table()) {
    if (variable.group == EnvGroup::kSystem) continue;
    if (const auto value = shown_env(variable.name)) log_debug("environment: {}={}", variable.name, *value);
  }
}

/// Adds every option and command to `app`; `program`, `context` and `quiet` outlive the parsing.
void add_everything(CLI::App& app, Command& program, Context& context, bool& quiet) {
  app.set_version_flag("--version", fmt::format("trireme {}", kVersion), "Print the version and exit");
  app.set_help_flag("-h,--help", "Print this help and exit");
  auto* verbose_flag = app.add_flag("-v,--verbose", context.verbose, "Log more; with errors, where they were thrown");
  app.add_flag("-q,--quiet", quiet, "Log only warnings and errors")->excludes(verbose_flag);
  app.formatter(std::make_shared<HelpFormatter>());
  app.fallthrough();  // --verbose and --quiet may also stand after the command
  app.require_subcommand(0, 1);
  for (const AddCommand add : kCommands) add(program, context);
  app.footer(env_help());  // last: commands made after it would repeat it
}

int run(const std::vector<std::string>& arguments, Context& context, std::ostream& err) {
  CLI::App app(kAbout, "trireme");
  Command program(app);
  bool quiet = false;
  add_everything(app, program, context, quiet);
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants them
    app.parse(reversed);
  } catch (const CLI::Success& done) {  // --help, --version
    return app.exit(done, context.out, err);
  } catch (const CLI::ParseError& error) {
    throw usage_error(app, error);
  }
  set_log_level_from(context.verbose, quiet, context);
  if (!context.run) {  // no command
    context.out << app.help();
    return kExitUsage;
  }
  return context.run();
}

}  // namespace

std::vector<CommandDoc> program_docs() {
  std::ostringstream out;
  Context context{.out = out};
  CLI::App app(kAbout, "trireme");
  Command program(app);
  bool quiet = false;
  add_everything(app, program, context, quiet);
  return program.docs();
}

int run_program(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  Context context{.out = out};
  try {
    return run(arguments, context, err);
  } catch (const ConfigError& error) {
    fmt::print(err, "{}{}", rank_prefix(), error.block(context.verbose));
    return kExitUsage;
  } catch (const Error& error) {
    fmt::print(err, "{}{}", rank_prefix(), error.block(context.verbose));
  } catch (const std::filesystem::filesystem_error& error) {
    const std::string path = error.path1().empty() ? std::string("a file") : error.path1().string();
    fmt::print(err, "{}{}", rank_prefix(),
               IoError(fmt::format("{}: {}", path, error.code().message()),
                       "look at its permissions, at the folders above it, and at the space that is left")
                   .block(context.verbose));
  } catch (const std::bad_alloc&) {
    fmt::print(err, "{}{}", rank_prefix(),
               ConfigError("there is not enough memory on this machine for what was asked",
                           "ask for less: a smaller model, batch, sequence length or number of ranks")
                   .block(context.verbose));
    return kExitUsage;
  } catch (const std::exception& error) {
    fmt::print(err, "{}unexpected error: {}\n", rank_prefix(), error.what());
  } catch (...) {
    fmt::print(err, "{}unexpected error of an unknown kind\n", rank_prefix());
  }
  return kExitFailed;
}

}  // namespace trireme::cli
