// Carries out a template's tree.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "trireme/base/error.h"
#include "trireme/serve/chat/chat_template.h"
#include "trireme/serve/chat/template_functions.h"

namespace trireme::serve::chat {
namespace {

using Kind = Expression::Kind;
constexpr std::int64_t kMostSteps = 500'000, kStepsOfIteration = 20;
constexpr std::size_t kMostBytes = 16 << 20;

class Renderer {
 public:
  explicit Renderer(std::map<std::string, Value> variables) { scopes_.push_back(std::move(variables)); }

  std::string run(const Body& body) {
    execute(body);
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(int line, const std::string& what) const {
    throw ConfigError(fmt::format("line {} of the chat template: {}", line, what));
  }

  void execute(const Body& body) {
    for (const auto& statement : body) {
      count(statement->line);
      switch (statement->kind) {
        case Statement::Kind::kText:
          print(statement->text, statement->line);
          break;
        case Statement::Kind::kPrint:
          print(text_of(evaluate(*statement->expression)), statement->line);
          break;
        case Statement::Kind::kIf:
          for (const auto& [condition, branch] : statement->branches) {
            if (condition && !is_true(evaluate(*condition))) continue;
            execute(branch);
            break;
          }
          break;
        case Statement::Kind::kFor:
          loop(*statement);
          break;
        case Statement::Kind::kSet:
          set(*statement);
          break;
      }
    }
  }

  void count(int line) {
    if (++steps_ > kMostSteps) fail(line, fmt::format("it has not ended after {} steps", kMostSteps));
  }
  void print(std::string_view text, int line) {
    if (out_.size() + text.size() > kMostBytes) fail(line, "its text is longer than 16 MiB");
    out_ += text;
  }

  void set(const Statement& statement) {
    Value value = evaluate(*statement.expression);
    if (statement.targets.size() == 1) {
      scopes_.back()[statement.targets[0]] = std::move(value);
      return;
    }
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto found = scope->find(statement.targets[0]);
      if (found == scope->end()) continue;
      if (!found->second.is_object()) break;
      found->second[statement.targets[1]] = std::move(value);
      return;
    }
    fail(statement.line, fmt::format("{} is no namespace", statement.targets[0]));
  }

  void loop(const Statement& statement) {
    const Value over = evaluate(*statement.expression);
    Value list = Value::array();
    if (over.is_array()) {
      list = over;
    } else if (over.is_object()) {
      for (const auto& [key, value] : over.items()) list.push_back(key);
    } else if (!is_undefined(over)) {
      fail(statement.line, fmt::format("{} is no list", text_of(over)));
    }
    scopes_.emplace_back();
    if (statement.only_if) {
      Value kept = Value::array();
      for (const Value& item : list) {
        assign(statement, item);
        if (is_true(evaluate(*statement.only_if))) kept.push_back(item);
      }
      list = std::move(kept);
    }
    const auto length = static_cast<std::int64_t>(list.size());
    for (std::int64_t i = 0; i < length; ++i) {
      scopes_.back().clear();  // what an iteration sets ends with it
      steps_ += kStepsOfIteration;
      count(statement.line);
      assign(statement, list[static_cast<std::size_t>(i)]);
      Value& info = scopes_.back()["loop"];
      info = {{"index", i + 1},         {"index0", i},
              {"revindex", length - i}, {"revindex0", length - i - 1},
              {"first", i == 0},        {"last", i + 1 == length},
              {"length", length}};
      if (i > 0) info["previtem"] = list[static_cast<std::size_t>(i - 1)];
      if (i + 1 < length) info["nextitem"] = list[static_cast<std::size_t>(i + 1)];
      execute(statement.branches[0].second);
    }
    scopes_.pop_back();
    if (length == 0 && statement.branches.size() > 1) execute(statement.branches[1].second);
  }

  void assign(const Statement& statement, const Value& item) {
    if (statement.targets.size() == 1) {
      scopes_.back()[statement.targets[0]] = item;
      return;
    }
    if (!item.is_array() || item.size() != 2) fail(statement.line, fmt::format("{} is no pair", text_of(item)));
    scopes_.back()[statement.targets[0]] = item[0];
    scopes_.back()[statement.targets[1]] = item[1];
  }

  Value evaluate(const Expression& e) {
    count(e.line);
    switch (e.kind) {
      case Kind::kLiteral:
        return e.value;
      case Kind::kName:
        return variable(e.name);
      case Kind::kList: {
        Value out = Value::array();
        for (const auto& child : e.children) out.push_back(evaluate(*child));
        return out;
      }
      case Kind::kMapping: {
        Value out = Value::object();
        for (std::size_t i = 0; i < e.children.size(); i += 2) {
          out[text_of(evaluate(*e.children[i]))] = evaluate(*e.children[i + 1]);
        }
        return out;
      }
      case Kind::kAttribute:
        return member(evaluate(*e.children[0]), Value(e.name), e);
      case Kind::kIndex:
        return member(evaluate(*e.children[0]), evaluate(*e.children[1]), e);
      case Kind::kSlice:
        return slice(e);
      case Kind::kCall: {
        if (!e.is_method) return call_function(e.name, arguments(e, 0));
        const Value value = evaluate(*e.children[0]);
        return call_method(e.name, value, arguments(e, 1));
      }
      case Kind::kFilter: {
        const Value value = evaluate(*e.children[0]);
        return apply_filter(e.name, value, arguments(e, 1));
      }
      case Kind::kTest:
        return apply_test(e.name, evaluate(*e.children[0])) != e.negated;
      case Kind::kUnary: {
        const Value value = evaluate(*e.children[0]);
        if (e.name == "not") return !is_true(value);
        if (value.is_number_integer()) return -value.get<std::int64_t>();
        if (value.is_number()) return -value.get<double>();
        fail(e.line, fmt::format("- is taken of {}", text_of(value)));
      }
      case Kind::kBinary:
        return binary(e);
      case Kind::kConditional:
        if (is_true(evaluate(*e.children[1]))) return evaluate(*e.children[0]);
        return e.children[2] ? evaluate(*e.children[2]) : undefined();
    }
    return undefined();
  }

  Arguments arguments(const Expression& call, std::size_t first) {
    Arguments out;
    for (std::size_t i = first; i < call.children.size(); ++i) out.values.push_back(evaluate(*call.children[i]));
    for (const auto& [name, value] : call.named) out.named.emplace_back(name, evaluate(*value));
    return out;
  }

  Value variable(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto found = scope->find(name); found != scope->end()) return found->second;
    }
    return undefined();
  }

  Value member(const Value& of, const Value& key, const Expression& e) const {
    if (is_undefined(of)) fail(e.line, fmt::format("{} is asked of an undefined value", text_of(key)));
    if (of.is_object() && key.is_string()) {
      const auto found = of.find(key.get_ref<const std::string&>());
      return found == of.end() ? undefined() : *found;
    }
    if (of.is_array() && key.is_number_integer()) {
      const auto size = static_cast<std::int64_t>(of.size());
      std::int64_t at = key.get<std::int64_t>();
      if (at < 0) at += size;
      return at >= 0 && at < size ? of[static_cast<std::size_t>(at)] : undefined();
    }
    return undefined();
  }

  Value slice(const Expression& e) {
    const Value of = evaluate(*e.children[0]);
    const auto bound = [&](std::size_t child) {
      if (child >= e.children.size() || !e.children[child]) return undefined();
      Value value = evaluate(*e.children[child]);
      if (!value.is_number_integer() && !value.is_null()) fail(e.line, "a slice needs whole numbers");
      return value.is_null() ? undefined() : value;
    };
    const Value first = bound(1), last = bound(2), step = bound(3);
    const bool reversed = !is_undefined(step) && step.get<std::int64_t>() == -1;
    if (!is_undefined(step) && step != 1 && !(reversed && is_undefined(first) && is_undefined(last))) {
      fail(e.line, "of steps in slices only [::-1] is supported");
    }
    if (!of.is_array() && !of.is_string()) fail(e.line, fmt::format("{} cannot be sliced", text_of(of)));
    const auto size = static_cast<std::int64_t>(of.is_string() ? of.get_ref<const std::string&>().size() : of.size());
    const auto place = [&](const Value& value, std::int64_t otherwise) {
      if (is_undefined(value)) return otherwise;
      const auto at = value.get<std::int64_t>();
      return std::clamp<std::int64_t>(at < 0 ? at + size : at, 0, size);
    };
    const std::int64_t begin = place(first, 0), end = std::max(begin, place(last, size));
    if (of.is_string()) {
      const std::string& text = of.get_ref<const std::string&>();
      if (reversed || std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) > 127; })) {
        fail(e.line, "slices of texts are supported for ASCII, forwards");
      }
      return text.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    }
    Value out = Value::array();
    for (std::int64_t i = begin; i < end; ++i) {
      out.push_back(of[static_cast<std::size_t>(reversed ? size - 1 - i : i)]);
    }
    return out;
  }

  Value binary(const Expression& e) {
    const std::string& op = e.name;
    Value left = evaluate(*e.children[0]);
    if (op == "and") return is_true(left) ? evaluate(*e.children[1]) : left;
    if (op == "or") return is_true(left) ? left : evaluate(*e.children[1]);
    const Value right = evaluate(*e.children[1]);
    if (op == "~") return text_of(left) + text_of(right);
    if (op == "==" || op == "!=") {
      const bool equal =
          is_undefined(left) || is_undefined(right) ? is_undefined(left) && is_undefined(right) : left == right;
      return equal == (op == "==");
    }
    if (op == "in" || op == "not in") return contains(right, left, e) == (op == "in");
    if (op == "<" || op == ">" || op == "<=" || op == ">=") return compare(left, right, e);
    if (op == "+" && left.is_string() && right.is_string()) {
      std::string sum = left.get<std::string>() + right.get<std::string>();
      if (sum.size() > kMostBytes) fail(e.line, "a text is longer than 16 MiB");
      return sum;
    }
    if (op == "+" && left.is_array() && right.is_array()) {
      for (const Value& each : right) left.push_back(each);
      return left;
    }
    return arithmetic(left, right, e);
  }

  bool contains(const Value& in, const Value& what, const Expression& e) const {
    if (in.is_string() && what.is_string()) {
      return in.get_ref<const std::string&>().find(what.get_ref<const std::string&>()) != std::string::npos;
    }
    if (in.is_array()) return std::ranges::find(in, what) != in.end();
    if (in.is_object()) return what.is_string() && in.contains(what.get_ref<const std::string&>());
    if (is_undefined(in)) return false;
    fail(e.line, fmt::format("{} holds nothing that could be looked for", text_of(in)));
  }

  bool compare(const Value& left, const Value& right, const Expression& e) const {
    if (!(left.is_number() && right.is_number()) && !(left.is_string() && right.is_string())) {
      fail(e.line, fmt::format("{} {} {} cannot be compared", text_of(left), e.name, text_of(right)));
    }
    if (e.name == "<") return left < right;
    if (e.name == ">") return right < left;
    return e.name == "<=" ? !(right < left) : !(left < right);
  }

  Value arithmetic(const Value& left, const Value& right, const Expression& e) const {
    if (!left.is_number() || !right.is_number()) {
      fail(e.line, fmt::format("{} {} {} cannot be computed", text_of(left), e.name, text_of(right)));
    }
    if (left.is_number_integer() && right.is_number_integer() && e.name != "/") {
      const auto a = left.get<std::int64_t>(), b = right.get<std::int64_t>();
      std::int64_t out = 0;
      bool over = false;
      if (e.name == "+") over = __builtin_add_overflow(a, b, &out);
      if (e.name == "-") over = __builtin_sub_overflow(a, b, &out);
      if (e.name == "*") over = __builtin_mul_overflow(a, b, &out);
      if (e.name == "//" || e.name == "%") {
        if (b == 0 || b == -1) {
          if (b == 0) fail(e.line, "a division by 0");
          over = __builtin_sub_overflow(std::int64_t{0}, a, &out);
          if (e.name == "%") return 0;
        } else {  // Python rounds down
          const std::int64_t rest = ((a % b) + b) % b;
          out = e.name == "%" ? rest : (a - rest) / b;
        }
      }
      if (over) fail(e.line, "a number beyond 64 bits");
      return out;
    }
    const auto a = left.get<double>(), b = right.get<double>();
    if (e.name == "+") return a + b;
    if (e.name == "-") return a - b;
    if (e.name == "*") return a * b;
    if (e.name == "/" && b != 0) return a / b;
    fail(e.line, fmt::format("{} {} {} cannot be computed", text_of(left), e.name, text_of(right)));
  }

  std::vector<std::map<std::string, Value>> scopes_;
  std::string out_;
  std::int64_t steps_ = 0;
};

}  // namespace

std::string ChatTemplate::render(const RenderInput& input) const {
  std::map<std::string, Value> variables{{"messages", input.messages},
                                         {"add_generation_prompt", input.add_generation_prompt},
                                         {"bos_token", input.bos_token},
                                         {"eos_token", input.eos_token}};
  for (const auto& [name, value] : input.more.items()) variables[name] = value;
  return Renderer(std::move(variables)).run(body_);
}

}  // namespace trireme::serve::chat
