// lm-evaluation-harness' task files in their simple form: a local JSON data set and templates that only put in fields.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/science/tasks/tasks.h"
#include "trireme/science/tasks/yaml.h"

namespace trireme::science {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

class HarnessReader {
 public:
  HarnessReader(std::string_view yaml, fs::path path)
      : path_(std::move(path)), file_(parse_yaml(yaml, path_.string())) {
    if (!file_.is_object()) refuse("the file", "is no mapping");
  }

  Task read() {
    check_keys();
    Task task{.name = text("task", path_.stem().string()), .items = {}};
    output_type_ = text("output_type", "generate_until");
    if (output_type_ != "multiple_choice" && output_type_ != "generate_until" && output_type_ != "loglikelihood")
      refuse("output_type", "is " + output_type_ + "; multiple_choice, generate_until and loglikelihood are supported");
    task.description = text("description", "");
    task.delimiter = text("fewshot_delimiter", "\n\n");
    target_delimiter_ = text("target_delimiter", " ");
    if (const auto at = file_.find("num_fewshot"); at != file_.end() && !at->is_null()) {
      if (!at->is_number_integer() || at->get<std::int64_t>() < 0 || at->get<std::int64_t>() > 10'000)
        refuse("num_fewshot", "is not a number from 0 to 10000");
      task.shots = at->get<int>();
    }
    for (const json& document : documents(split())) task.items.push_back(item(document));
    const std::string examples = text("fewshot_split", text("training_split", ""));
    if (!examples.empty() && examples != split()) {
      for (const json& document : documents(examples)) task.examples.push_back(item(document));
    }
    return task;
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const std::string& why) const {
    throw ConfigError(fmt::format("{}: {} {}", path_.string(), key, why),
                      "write the task as .jsonl or .toml, or keep to the harness' simple form");
  }

  /// What is understood, and what may stand there without a meaning here. Everything else is refused.
  void check_keys() const {
    static constexpr std::string_view kKnown[] = {
        "task",          "dataset_path",   "dataset_kwargs",    "output_type",      "doc_to_text", "doc_to_target",
        "doc_to_choice", "num_fewshot",    "fewshot_delimiter", "target_delimiter", "description", "test_split",
        "fewshot_split", "training_split", "validation_split",  "metric_list",      "tag",         "group",
        "metadata",      "dataset_name",   "task_alias",        "generation_kwargs"};
    for (const auto& [key, value] : file_.items()) {
      if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) refuse(key, "is not supported");
    }
    if (text("dataset_path", "json") != "json")
      refuse("dataset_path", "is " + text("dataset_path", "") + "; only local data (json) is read");
    if (const auto at = file_.find("metric_list"); at != file_.end()) {
      for (const auto& metric : *at) {
        const std::string name = metric.is_object() ? metric.value("metric", "") : "";
        if (name != "acc" && name != "acc_norm" && name != "exact_match" && name != "brier_score" &&
            name != "perplexity")
          refuse("metric_list", fmt::format("has {}; acc, acc_norm, exact_match, brier_score and perplexity are "
                                            "supported",
                                            metric.dump()));
      }
    }
  }

  std::string text(const char* key, const std::string& fallback) const {
    const auto at = file_.find(key);
    if (at == file_.end() || at->is_null()) return fallback;
    if (!at->is_string()) refuse(key, "is no string");
    return at->get<std::string>();
  }

  std::string split() const { return text("test_split", text("validation_split", "test")); }

  std::vector<json> documents(const std::string& split) const {
    const auto kwargs = file_.find("dataset_kwargs");
    const bool has = kwargs != file_.end() && kwargs->is_object() && kwargs->contains("data_files");
    if (!has) refuse("dataset_kwargs", "names no data_files");
    const ordered_json& files = (*kwargs)["data_files"];
    const ordered_json& name = files.is_object() ? files.value(split, ordered_json()) : files;
    if (!name.is_string()) refuse("dataset_kwargs.data_files", "has no file for split " + split);
    fs::path file(name.get<std::string>());
    if (file.is_relative()) file = path_.parent_path() / file;
    const std::string content = read_text_file(file, std::uint64_t{256} << 20);
    std::vector<json> found;
    try {
      if (const std::size_t first = content.find_first_not_of(" \n\r\t");
          first != std::string::npos && content[first] == '[') {
        for (json& one : json::parse(content)) found.push_back(std::move(one));
        return found;
      }
      std::istringstream lines(content);
      for (std::string line; std::getline(lines, line);) {
        if (line.find_first_not_of(" \r\t") != std::string::npos) found.push_back(json::parse(line));
      }
    } catch (const json::exception& error) {
      throw ConfigError(fmt::format("{}: {}", file.string(), error.what()), "give a JSON array, or an object a line");
    }
    return found;
  }

  static std::string as_text(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

  /// {{field}} and {{field.part}} are put in; anything else between braces is refused.
  std::string filled(const std::string& key, const std::string& pattern, const json& document) const {
    if (pattern.find("{%") != std::string::npos) refuse(key, "has a statement of Jinja, which is not supported");
    if (pattern.find("{{") == std::string::npos) {  // a field's name, or plain text
      return document.contains(pattern) ? as_text(document[pattern]) : pattern;
    }
    std::string out;
    for (std::size_t at = 0; at < pattern.size();) {
      const std::size_t open = pattern.find("{{", at);
      out += pattern.substr(at, open == std::string::npos ? open : open - at);
      if (open == std::string::npos) break;
      const std::size_t close = pattern.find("}}", open);
      if (close == std::string::npos) refuse(key, "has {{ without }}");
      std::string name = pattern.substr(open + 2, close - open - 2);
      name.erase(0, name.find_first_not_of(' '));
      name.erase(name.find_last_not_of(' ') + 1);
      out += as_text(field(key, name, document));
      at = close + 2;
    }
    return out;
  }

  const json& field(const std::string& key, const std::string& name, const json& document) const {
    const json* at = &document;
    for (std::size_t begin = 0; begin <= name.size();) {
      const std::size_t dot = std::min(name.find('.', begin), name.size());
      const std::string part = name.substr(begin, dot - begin);
      if (!at->is_object() || !at->contains(part))
        refuse(key, fmt::format("asks for {{{{{}}}}}, which is no field of the data", name));
      at = &(*at)[part];
      begin = dot + 1;
    }
    return *at;
  }

  std::vector<std::string> choices(const json& document) const {
    const auto at = file_.find("doc_to_choice");
    if (at == file_.end()) refuse("doc_to_choice", "is missing, and output_type is multiple_choice");
    std::vector<std::string> found;
    if (at->is_array()) {
      for (const auto& one : *at) found.push_back(filled("doc_to_choice", as_text(one), document));
      return found;
    }
    std::string name = as_text(*at);
    if (name.starts_with("{{") && name.ends_with("}}")) name = name.substr(2, name.size() - 4);
    name.erase(0, name.find_first_not_of(' '));
    name.erase(name.find_last_not_of(' ') + 1);
    const json& list = field("doc_to_choice", name, document);
    if (!list.is_array()) refuse("doc_to_choice", name + " is no list in the data");
    for (const json& one : list) found.push_back(as_text(one));
    return found;
  }

  TaskItem item(const json& document) const {
    TaskItem item;
    item.prompt = filled("doc_to_text", text("doc_to_text", ""), document);
    const auto at = file_.find("doc_to_target");
    if (at == file_.end()) refuse("doc_to_target", "is missing");
    const std::string target = filled("doc_to_target", as_text(*at), document);
    if (output_type_ != "multiple_choice") {
      item.answer = target_delimiter_ + target;
      return item;
    }
    const std::vector<std::string> all = choices(document);
    auto right = std::find(all.begin(), all.end(), target);
    if (right == all.end()) {  // the number of the choice
      std::size_t number = all.size();
      if (!target.empty() && target.size() < 6 && target.find_first_not_of("0123456789") == std::string::npos)
        number = static_cast<std::size_t>(std::stoi(target));
      if (number >= all.size())
        refuse("doc_to_target", fmt::format("gives \"{}\", which is neither a choice nor the number of one", target));
      right = all.begin() + static_cast<std::ptrdiff_t>(number);
    }
    for (auto one = all.begin(); one != all.end(); ++one) {
      if (one == right)
        item.answer = target_delimiter_ + *one;
      else
        item.distractors.push_back(target_delimiter_ + *one);
    }
    return item;
  }

  fs::path path_;
  ordered_json file_;
  std::string output_type_, target_delimiter_;
};

}  // namespace

Task harness_task(std::string_view yaml, const std::filesystem::path& path) { return HarnessReader(yaml, path).read(); }

}  // namespace trireme::science
