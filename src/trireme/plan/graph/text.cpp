#include "trireme/plan/graph/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <unordered_map>

#include "trireme/base/error.h"

namespace trireme::plan::graph {
namespace {

std::string joined_names(const Graph& graph, const std::vector<int>& dims, std::string_view between) {
  std::string text;
  for (const int dim : dims) {
    if (!text.empty()) text += between;
    text += graph.dims[static_cast<std::size_t>(dim)].name;
  }
  return text;
}

bool is_name(std::string_view word) {
  return !word.empty() && std::ranges::all_of(word, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_./+-'").find(c) != std::string_view::npos;
  });
}

class GraphReader {
 public:
  explicit GraphReader(const std::string& source) : source_(source) {}

  Graph read(std::string_view text) {
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      ++line_;
      read_line(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    if (!named_) fail("there is no line \"graph NAME\"", "begin with one");
    const std::vector<std::string> problems = find_problems(graph_);
    if (!problems.empty()) {
      std::string all;
      for (const std::string& problem : problems) all += (all.empty() ? "" : "; ") + problem;
      throw ConfigError(fmt::format("{}: the graph contradicts itself: {}", source_, all),
                        "correct the lines it names");
    }
    return std::move(graph_);
  }

 private:
  using Names = std::unordered_map<std::string, int>;

  [[noreturn]] void fail(const std::string& why, const std::string& hint) const {
    throw ConfigError(fmt::format("{}, line {}: {}", source_, line_, why), hint);
  }

  void read_line(std::string_view line) {
    std::vector<std::string_view> words;
    std::size_t at = 0;
    while (at < line.size()) {
      const std::size_t begin = line.find_first_not_of(" \t\r", at);
      if (begin == line.npos || line[begin] == '#') break;
      at = std::min(line.find_first_of(" \t\r", begin), line.size());
      words.push_back(line.substr(begin, at - begin));
    }
    if (words.empty()) return;
    if (words[0] == "graph") return read_graph(words);
    if (!named_) fail("the first line is not \"graph NAME\"", "begin with one");
    if (words[0] == "dim") return read_dim(words);
    if (words[0] == "tensor") return read_tensor(words);
    if (words[0] == "op") return read_op(words);
    fail(fmt::format("\"{}\" is none of graph, dim, tensor and op", words[0]), "begin each line with one of them");
  }

  void want(const std::vector<std::string_view>& words, std::size_t least, const char* form) const {
    if (words.size() < least) fail("the line is too short", fmt::format("its form is \"{}\"", form));
  }

  void read_graph(const std::vector<std::string_view>& words) {
    if (words.size() != 2 || !is_name(words[1]) || named_)
      fail("no name, or a second one", "its form is \"graph NAME\"");
    graph_.name = words[1];
    named_ = true;
  }

  template <typename Items>
  void remember(Names& names, const Items& items, std::string_view name, std::string_view what) {
    if (!is_name(name))
      fail(fmt::format("\"{}\" is no name", name), "names are made of letters, digits and _ . / + - '");
    if (!names.emplace(std::string(name), static_cast<int>(items.size())).second)
      fail(fmt::format("there is a {} {} already", what, name), "give it another name");
  }

  int look_up(const Names& names, std::string_view name, std::string_view what) const {
    const auto found = names.find(std::string(name));
    if (found != names.end()) return found->second;
    std::vector<std::string> known;
    if (names.size() < 500)
      for (const auto& [other, index] : names) known.push_back(other);
    std::ranges::sort(known);
    fail(fmt::format("no {} {} stands above{}", what, name, did_you_mean(name, known)), "name it before it is used");
  }

  Index number(std::string_view word) const {
    Index value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc{} || end != word.data() + word.size())
      fail(fmt::format("\"{}\" is no whole number", word), "write digits only");
    return value;
  }

  double real(std::string_view word) const {
    double value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc{} || end != word.data() + word.size())
      fail(fmt::format("\"{}\" is no number", word), "write digits, as in 10000");
    return value;
  }

  template <typename Enum>
  Enum choice(std::string_view word, std::string_view what) const {
    std::vector<std::string> names;
    for (const auto& entry : enum_names(std::type_identity<Enum>{})) {
      if (entry.name == word) return entry.value;
      names.emplace_back(entry.name);
    }
    fail(fmt::format("\"{}\" is no {}{}", word, what, did_you_mean(word, names)), "one of " + listed(names));
  }

  std::vector<int> dim_list(std::string_view list) const {
    std::vector<int> dims;
    for (const std::string& name : trireme::split(list, ',')) dims.push_back(look_up(dims_, name, "dimension"));
    return dims;
  }

  void read_dim(const std::vector<std::string_view>& words) {
    if (words.size() != 3) fail("a dimension has a name and a size", "its form is \"dim NAME SIZE\"");
    remember(dims_, graph_.dims, words[1], "dimension");
    graph_.dims.push_back({std::string(words[1]), number(words[2])});
  }

  void read_tensor(const std::vector<std::string_view>& words) {
    want(words, 4, "tensor NAME ROLE DTYPE DIM...");
    Tensor tensor{.name = std::string(words[1])};
    tensor.role = choice<Role>(words[2], "role");
    tensor.dtype = choice<DType>(words[3], "type");
    for (std::size_t i = 4; i < words.size(); ++i) {
      if (words[i].starts_with("grad-of=")) {
        tensor.grad_of = look_up(tensors_, words[i].substr(8), "tensor");
      } else {
        tensor.dims.push_back(look_up(dims_, words[i], "dimension"));
      }
    }
    remember(tensors_, graph_.tensors, words[1], "tensor");
    graph_.tensors.push_back(std::move(tensor));
  }

  void read_op(const std::vector<std::string_view>& words) {
    want(words, 4, "op NAME KIND INPUT... -> OUTPUT... KEY=VALUE...");
    Op op{.name = std::string(words[1]), .kind = choice<OpKind>(words[2], "operator")};
    bool after = false;
    for (std::size_t i = 3; i < words.size(); ++i) {
      const std::string_view word = words[i];
      if (word == "->") {
        if (after) fail("there are two arrows", "write it once");
        after = true;
      } else if (word.find('=') != word.npos) {
        read_key(op, word);
      } else {
        (after ? op.outputs : op.inputs).push_back(look_up(tensors_, word, "tensor"));
      }
    }
    if (!after) fail("there is no \"->\"", "its form is \"op NAME KIND INPUT... -> OUTPUT... KEY=VALUE...\"");
    remember(ops_, graph_.ops, words[1], "operator");
    graph_.ops.push_back(std::move(op));
  }

  void read_key(Op& op, std::string_view word) {
    const std::string_view key = word.substr(0, word.find('=')), value = word.substr(word.find('=') + 1);
    if (key == "part") {
      op.part = choice<Part>(value, "part");
    } else if (key == "function") {
      op.function = value;
    } else if (key == "bias") {
      if (value != "yes") fail("bias is \"yes\" or not written", "leave it out");
      op.bias = true;
    } else if (key == "dims") {
      op.dims = dim_list(value);
    } else if (key == "forward") {
      op.forward = look_up(ops_, value, "operator");
    } else if (key == "regroup") {
      const std::size_t arrow = value.find('>');
      if (arrow == value.npos) fail("regroup has no \">\"", "its form is regroup=a,b>c");
      op.regroups.push_back({dim_list(value.substr(0, arrow)), dim_list(value.substr(arrow + 1))});
    } else if (key == "base") {
      op.base = real(value);
    } else if (key == "reach") {
      op.reach = number(value);
    } else if (key == "window") {
      op.windows.push_back(read_window(value));
    } else {
      const std::vector<std::string> keys{"part",    "function", "bias", "dims", "forward",
                                          "regroup", "window",   "base", "reach"};
      fail(fmt::format("an operator has no key {}{}", key, did_you_mean(key, keys)), "keys are " + listed(keys));
    }
  }

  Window read_window(std::string_view text) const {
    const std::vector<std::string> fields = trireme::split(text, ',');
    const std::size_t arrow = fields[0].find('>');
    if (arrow == std::string::npos) fail("a window names no input and output", "its form is window=IN>OUT,kernel=3");
    Window window{.in = look_up(dims_, fields[0].substr(0, arrow), "dimension"),
                  .out = look_up(dims_, fields[0].substr(arrow + 1), "dimension")};
    for (std::size_t i = 1; i < fields.size(); ++i) {
      const std::size_t equals = fields[i].find('=');
      const std::string key = fields[i].substr(0, equals);
      const std::string value = equals == std::string::npos ? "" : fields[i].substr(equals + 1);
      if (key == "over") {
        window.kernel_dim = look_up(dims_, value, "dimension");
        continue;
      }
      Index* field = key == "kernel"     ? &window.kernel
                     : key == "stride"   ? &window.stride
                     : key == "padding"  ? &window.padding
                     : key == "dilation" ? &window.dilation
                                         : nullptr;
      if (!field) fail(fmt::format("a window has no \"{}\"", key), "kernel, stride, padding, dilation and over");
      *field = number(value);
    }
    return window;
  }

  const std::string& source_;
  std::size_t line_ = 0;
  bool named_ = false;
  Graph graph_;
  Names dims_, tensors_, ops_;
};

void add_keys(const Graph& graph, const Op& op, std::string& text) {
  const auto add = [&](std::string_view key, std::string_view value) {
    fmt::format_to(std::back_inserter(text), " {}={}", key, value);
  };
  if (op.part != Part::kForward) add("part", name_of(op.part));
  if (!op.function.empty()) add("function", op.function);
  if (op.bias) add("bias", "yes");
  if (!op.dims.empty()) add("dims", joined_names(graph, op.dims, ","));
  for (const Window& window : op.windows) {
    std::string value = joined_names(graph, {window.in}, "") + ">" + joined_names(graph, {window.out}, "") +
                        fmt::format(",kernel={}", window.kernel);
    if (window.stride != 1) value += fmt::format(",stride={}", window.stride);
    if (window.padding != 0) value += fmt::format(",padding={}", window.padding);
    if (window.dilation != 1) value += fmt::format(",dilation={}", window.dilation);
    if (window.kernel_dim >= 0) value += ",over=" + joined_names(graph, {window.kernel_dim}, "");
    add("window", value);
  }
  for (const Regroup& regroup : op.regroups)
    add("regroup", joined_names(graph, regroup.from, ",") + ">" + joined_names(graph, regroup.to, ","));
  if (op.base != 0) add("base", fmt::format("{}", op.base));
  if (op.reach != 0) add("reach", fmt::format("{}", op.reach));
  if (op.forward >= 0) add("forward", graph.op(op.forward).name);
}

}  // namespace

std::string to_text(const Graph& graph) {
  std::string text = fmt::format("graph {}\n", graph.name);
  const auto out = std::back_inserter(text);
  for (const Dim& dim : graph.dims) fmt::format_to(out, "dim {} {}\n", dim.name, dim.size);
  for (const Tensor& tensor : graph.tensors) {
    fmt::format_to(out, "tensor {} {} {}", tensor.name, name_of(tensor.role), name_of(tensor.dtype));
    if (!tensor.dims.empty()) fmt::format_to(out, " {}", joined_names(graph, tensor.dims, " "));
    if (tensor.grad_of >= 0) fmt::format_to(out, " grad-of={}", graph.tensor(tensor.grad_of).name);
    text += '\n';
  }
  for (const Op& op : graph.ops) {
    fmt::format_to(out, "op {} {}", op.name, name_of(op.kind));
    for (const int input : op.inputs) fmt::format_to(out, " {}", graph.tensor(input).name);
    text += " ->";
    for (const int output : op.outputs) fmt::format_to(out, " {}", graph.tensor(output).name);
    add_keys(graph, op, text);
    text += '\n';
  }
  return text;
}

Graph parse_graph(std::string_view text, const std::string& source) { return GraphReader(source).read(text); }

std::string describe(const Graph& graph, const Tensor& tensor) {
  std::string text = fmt::format("{} {} [", tensor.name, name_of(tensor.dtype));
  for (std::size_t i = 0; i < tensor.dims.size(); ++i)
    text +=
        fmt::format("{}{}={}", i ? " " : "", graph.dims[std::size_t(tensor.dims[i])].name, graph.size(tensor.dims[i]));
  return text + "]";
}

}  // namespace trireme::plan::graph
