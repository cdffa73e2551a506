// Walks a parsed file and the --set overrides along the schema, into the struct; collects every problem on the way.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "trireme/base/config.h"
#include "trireme/base/config/node.h"
#include "trireme/base/config/read_value.h"

namespace trireme::config {
namespace {

std::string join(std::string_view path, std::string_view name) {
  return path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
}

/// Every key there is, in full; entries of lists without their number.
void add_keys(const Schema& schema, const std::string& path, std::vector<std::string>& keys) {
  for (const Field& field : schema.fields) keys.push_back(join(path, field.name));
  for (const Part& part : schema.parts) add_keys(*part.schema, join(path, part.name), keys);
}

class Reader {
 public:
  Reader(const Schema& root, const Input& input, std::vector<Problem>& problems)
      : root_(root), file_(input.file.value_or("")), problems_(problems) {
    add_keys(root, "", keys_);
  }

  void read_section(const Schema& schema, const Node& table, void* object, const std::string& path) {
    for (const auto& [name, node] : table.members) {
      if (const Field* field = schema.find_field(name)) {
        store(*field, node, object, join(path, name), at(node));
      } else if (const Part* part = schema.find_part(name)) {
        read_part(*part, node, object, join(path, name));
      } else {
        add(join(path, name), unknown_key(schema, path, name, node.kind == Node::Kind::kTable), {}, at(node));
      }
    }
  }

  /// "a.b.c=text", along the schema.
  void read_override(const Schema& root, const Override& given, void* object) {
    const auto& [assignment, origin] = given;
    const std::size_t equals = assignment.find('=');
    if (equals == std::string::npos) {
      return add(assignment, "there is no value", "write --set section.key=value", origin);
    }
    const std::string key(trimmed(std::string_view(assignment).substr(0, equals)));
    Node node;
    node.kind = Node::Kind::kRaw;
    node.text = assignment.substr(equals + 1);
    const std::vector<std::string> names = split(key, '.');
    const Schema* schema = &root;
    std::string path;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const bool last = i + 1 == names.size();
      if (const Field* field = schema->find_field(names[i]); field != nullptr && last) {
        return store(*field, node, object, key, origin);
      }
      const Part* part = schema->find_part(names[i]);
      if (part == nullptr) return add(key, unknown_key(*schema, path, names[i], !last), {}, origin);
      std::size_t index = 0;
      if (part->list) {
        const std::size_t size = part->size(object);
        if (last && trimmed(node.text).empty()) return clear(*part, object, key, origin);
        if (last || !entry_number(names[++i], size, index)) {
          return add(key,
                     size == 0 ? fmt::format("[[{}]] has no entries to change", join(path, part->name))
                               : fmt::format("name an entry of [[{}]] by its number, 0 to {}", join(path, part->name),
                                             size - 1),
                     {}, origin);
        }
      }
      path = join(path, part->list ? fmt::format("{}.{}", part->name, index) : part->name);
      object = entry(*part, object, index);
      schema = part->schema.get();
    }
    add(key, "is a section; set one of its keys", fmt::format("e.g. {}", example_key(*schema, key)), origin);
  }

  /// Keys without a default must have come from somewhere.
  void check_required(const Schema& schema, const void* object, const std::string& path) {
    for (const Field& field : schema.fields) {
      const std::string key = join(path, field.name);
      const bool refused = std::ranges::find(problems_, key, &Problem::key) != problems_.end();
      if (field.required && !origins_.contains(key) && !refused) {
        add(key, fmt::format("must be given: {}", type_text(field)), {}, section_lines_[path]);
      }
    }
    for (const Part& part : schema.parts) {
      for (std::size_t i = 0; i < part.size(object); ++i) {
        check_required(*part.schema, part.at(object, i),
                       join(path, part.list ? fmt::format("{}.{}", part.name, i) : part.name));
      }
    }
  }

  Origins origins() && { return std::move(origins_); }

 private:
  std::string at(const Node& node) const { return fmt::format("{}:{}", file_, node.line); }
  void add(std::string key, std::string reason, std::string hint, std::string where) {
    problems_.push_back({std::move(key), std::move(reason), std::move(hint), std::move(where)});
  }
  // The schema hands out const access; here the struct is the caller's own and being written.
  static void* entry(const Part& part, void* object, std::size_t index) {
    return const_cast<void*>(part.at(object, index));
  }
  static bool entry_number(const std::string& text, std::size_t size, std::size_t& index) {
    const char* end = text.data() + text.size();
    const auto got = std::from_chars(text.data(), end, index);
    return got.ec == std::errc{} && got.ptr == end && index < size;
  }
  static std::string example_key(const Schema& schema, const std::string& path) {
    if (!schema.fields.empty()) return fmt::format("{}.{}", path, schema.fields.front().name);
    return schema.parts.empty() ? path
                                : example_key(*schema.parts.front().schema, join(path, schema.parts.front().name));
  }

  /// Nothing after '=': no entries any more, nor their origins and problems.
  void clear(const Part& part, void* object, const std::string& key, std::string where) {
    part.resize(object, 0);
    std::erase_if(origins_, [&](const auto& origin) { return origin.first.starts_with(key + "."); });
    std::erase_if(problems_, [&](const Problem& problem) { return problem.key.starts_with(key + "."); });
    origins_[key] = std::move(where);
  }

  void store(const Field& field, const Node& node, void* object, const std::string& key, std::string where) {
    Reading reading = read_value(field, node);
    if (reading.refused()) return add(key, std::move(reading.reason), std::move(reading.hint), std::move(where));
    field.set(object, reading.value);
    origins_[key] = std::move(where);
  }

  void read_part(const Part& part, const Node& node, void* object, const std::string& path) {
    section_lines_[path] = at(node);
    if (!part.list) {
      if (node.kind == Node::Kind::kTable) return read_section(*part.schema, node, entry(part, object, 0), path);
      return add(path, fmt::format("is a section, found {}", found_text(node)),
                 fmt::format("write [{}] and its keys below", path), at(node));
    }
    const auto is_table = [](const Node& item) { return item.kind == Node::Kind::kTable; };
    if (node.kind != Node::Kind::kList || !std::ranges::all_of(node.items, is_table)) {
      return add(path, fmt::format("is a list of tables, found {}", found_text(node)),
                 fmt::format("write [[{}]] once for each", path), at(node));
    }
    part.resize(object, node.items.size());
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      const std::string name = fmt::format("{}.{}", path, i);
      section_lines_[name] = at(node.items[i]);
      read_section(*part.schema, node.items[i], entry(part, object, i), name);
    }
  }

  std::string unknown_key(const Schema& schema, const std::string& path, const std::string& name, bool is_section) {
    for (const auto& [reserved, purpose] : schema.reserved) {
      if (reserved == name) return fmt::format("is reserved for {}", purpose);
    }
    for (const auto& [before, now] : schema.retired) {
      if (before == name) return fmt::format("unknown key; did you mean \"{}\"?", join(path, now));
    }
    for (const auto& [theirs, key] : root_.foreign) {
      if (theirs == name && !is_section) return fmt::format("unknown key; did you mean \"{}\"?", key);
    }
    if (const auto near = closest(name, schema.names())) {
      return fmt::format("unknown key; did you mean \"{}\"?", join(path, *near));
    }
    // The right name in the wrong section.
    for (const std::string& key : keys_) {
      if (key.ends_with("." + name) || key == name) return fmt::format("unknown key; did you mean \"{}\"?", key);
    }
    if (!listed_.insert(path).second) {
      return fmt::format("unknown key{}", path.empty() ? "" : fmt::format("; the keys of [{}] are listed above", path));
    }
    return fmt::format("unknown key; {} are {}", path.empty() ? "the sections" : fmt::format("the keys of [{}]", path),
                       listed(schema.names()));
  }

  const Schema& root_;
  std::string file_;
  std::vector<Problem>& problems_;
  std::set<std::string> listed_;  // sections whose keys a message has listed: once is enough
  std::vector<std::string> keys_;
  Origins origins_;
  std::map<std::string, std::string> section_lines_;
};

std::string read_file(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::ifstream stream(path, std::ios::binary);
  if (stream && !fs::is_directory(path, error)) {
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  }
  const std::string why = fs::is_directory(path, error) ? "it is a folder" : std::strerror(errno);
  std::vector<std::string> names;
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  for (fs::directory_iterator file(folder, error), end; !error && file != end; file.increment(error)) {
    names.push_back(file->path().filename().string());
  }
  std::ranges::sort(names);  // the file system's order is nobody's
  throw ConfigError(
      fmt::format("cannot read {}: {}{}", path, why, did_you_mean(fs::path(path).filename().string(), names)),
      "give the path of a TOML file; recipes/ holds ready ones");
}

}  // namespace

Origins read_into(const Schema& schema, void* object, const Input& input, std::vector<Problem>& problems) {
  Reader reader(schema, input, problems);
  if (input.file || input.text) {
    const std::string text = input.text ? *input.text : read_file(*input.file);
    try {
      reader.read_section(schema, parse_toml(text), object, "");
    } catch (const SyntaxError& error) {
      problems.push_back({"", fmt::format("not TOML: {}", error.reason), "",
                          fmt::format("{}:{}", input.file.value_or(""), error.line)});
    }
  }
  for (const Override& given : input.environment) reader.read_override(schema, given, object);
  for (const std::string& assignment : input.sets) reader.read_override(schema, {assignment, "--set"}, object);
  reader.check_required(schema, object, "");
  return std::move(reader).origins();
}

void add_cross_problems(std::vector<Problem> found, const Origins& origins, const Input& input,
                        std::vector<Problem>& problems) {
  const auto already = [&](const Problem& problem) {
    // What could not be read kept its default, so what follows from it is noise. A syntax error leaves nothing to
    // judge.
    return std::ranges::any_of(problems, [&](const Problem& known) {
      return known.key.empty() || known.key == problem.key || known.key.starts_with(problem.key + ".");
    });
  };
  std::erase_if(found, already);
  for (Problem& problem : found) {
    if (const auto origin = origins.find(problem.key); origin != origins.end()) problem.where = origin->second;
    if (problem.where.empty()) problem.where = input.file.value_or("");
    problems.push_back(std::move(problem));
  }
}

std::string title(const Input& input) { return input.file.value_or("the configuration"); }

ProblemsError::ProblemsError(std::string_view what, std::vector<Problem> problems)
    : ConfigError([&] {
        TextTable table({{}, {}, {}});
        for (const Problem& problem : problems) {
          table.add({problem.where, problem.key,
                     problem.hint.empty() ? problem.reason : fmt::format("{} -> {}", problem.reason, problem.hint)});
        }
        std::string text = fmt::format("{} has {}:\n{}", what, counted(problems.size(), "problem"), table.text());
        text.pop_back();  // the last line end: whoever prints adds one
        return text;
      }()),
      problems_(std::move(problems)) {}

}  // namespace trireme::config
