#include "trireme/serve/chat/template_ast.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "trireme/base/error.h"
#include "trireme/serve/chat/template_functions.h"
#include "trireme/serve/chat/template_lexer.h"

namespace trireme::serve::chat {
namespace {

using Kind = Expression::Kind;
constexpr int kMostNested = 100;

class TemplateParser {
 public:
  explicit TemplateParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Body run() {
    Body body = take_body({});
    if (token().kind != Token::Kind::kEnd) fail("a statement ends what was not begun");
    return body;
  }

 private:
  const Token& token(std::size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  bool is(Token::Kind kind, std::string_view text) const { return token().kind == kind && token().text == text; }
  bool is_word(std::string_view word) const { return is(Token::Kind::kName, word); }
  bool is_operator(std::string_view op) const { return is(Token::Kind::kOperator, op); }
  bool take_word(std::string_view word) { return is_word(word) && (++at_, true); }
  bool take_operator(std::string_view op) { return is_operator(op) && (++at_, true); }
  void expect_operator(std::string_view op) {
    if (!take_operator(op)) fail(fmt::format("'{}' is expected", op));
  }
  void expect(Token::Kind kind, std::string_view what) {
    if (token().kind != kind) fail(fmt::format("{} is expected", what));
    ++at_;
  }
  std::string expect_name() {
    if (token().kind != Token::Kind::kName) fail("a name is expected");
    return tokens_[at_++].text;
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw ConfigError(fmt::format("line {} of the chat template: {}", token().line, what),
                      "give another template with --chat-template FILE");
  }

  /// Deep nesting would exhaust the stack before it meant anything.
  struct Nested {
    explicit Nested(TemplateParser& parser) : depth(parser.depth_) {
      if (++depth > kMostNested) parser.fail(fmt::format("it is nested deeper than {} levels", kMostNested));
    }
    ~Nested() { --depth; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    int& depth;
  };

  /// Until one of `ends` stands at the beginning of a statement, which is left there.
  Body take_body(const std::vector<std::string_view>& ends) {
    const Nested nested(*this);
    Body body;
    while (token().kind != Token::Kind::kEnd) {
      auto statement = std::make_unique<Statement>();
      statement->line = token().line;
      if (token().kind == Token::Kind::kText) {
        statement->text = tokens_[at_++].text;
      } else if (token().kind == Token::Kind::kPrintBegin) {
        ++at_;
        statement->kind = Statement::Kind::kPrint;
        statement->expression = expression();
        expect(Token::Kind::kPrintEnd, "}}");
      } else {
        const std::string& word = token(1).text;
        if (std::ranges::find(ends, word) != ends.end()) return body;
        if (word.starts_with("end") || word == "else" || word == "elif") return body;  // run() says what is wrong
        ++at_;
        if (word == "generation" || word == "endgeneration") fail_unless_known(word);
        take_statement(*statement);
      }
      body.push_back(std::move(statement));
    }
    if (!ends.empty()) fail(fmt::format("{{% {} %}} is missing", ends.front()));
    return body;
  }

  [[noreturn]] void fail_unless_known(const std::string& word) const {
    fail(fmt::format("the statement {{% {} %}} is not supported", word));
  }

  void end_block() { expect(Token::Kind::kBlockEnd, "%}"); }
  void take_end(std::string_view word) {
    expect(Token::Kind::kBlockBegin, "{%");
    if (!take_word(word)) fail(fmt::format("{{% {} %}} is expected", word));
    end_block();
  }

  void take_statement(Statement& out) {
    if (take_word("if")) return take_if(out);
    if (take_word("for")) return take_for(out);
    if (take_word("set")) return take_set(out);
    fail_unless_known(token().text);
  }

  void take_if(Statement& out) {
    out.kind = Statement::Kind::kIf;
    ExpressionPtr condition = expression();
    end_block();
    while (true) {
      Body body = take_body({"endif", "else", "elif"});
      out.branches.emplace_back(std::move(condition), std::move(body));
      expect(Token::Kind::kBlockBegin, "{%");
      if (take_word("elif")) {
        if (!out.branches.back().first) fail("elif stands behind else");
        condition = expression();
      } else if (take_word("else")) {
        if (!out.branches.back().first) fail("else stands behind else");
        condition = nullptr;
      } else {
        if (!take_word("endif")) fail("{% endif %} is expected");
        return end_block();
      }
      end_block();
    }
  }

  void take_for(Statement& out) {
    out.kind = Statement::Kind::kFor;
    out.targets.push_back(expect_name());
    if (take_operator(",")) out.targets.push_back(expect_name());
    if (!take_word("in")) fail("'in' is expected");
    out.expression = or_expression();
    if (take_word("if")) out.only_if = expression();
    if (is_word("recursive")) fail("recursive loops are not supported");
    end_block();
    Body body = take_body({"endfor", "else"});
    out.branches.emplace_back(nullptr, std::move(body));
    if (token(1).text == "else") {
      take_end("else");
      out.branches.emplace_back(nullptr, take_body({"endfor"}));
    }
    take_end("endfor");
  }

  void take_set(Statement& out) {
    out.kind = Statement::Kind::kSet;
    out.targets.push_back(expect_name());
    if (take_operator(".")) out.targets.push_back(expect_name());
    if (!take_operator("=")) fail("{% set NAME = VALUE %} is supported, other forms of set are not");
    out.expression = expression();
    end_block();
  }

  ExpressionPtr make(Kind kind, std::string name = {}) const {
    auto out = std::make_unique<Expression>();
    out->kind = kind;
    out->name = std::move(name);
    out->line = token().line;
    return out;
  }
  ExpressionPtr binary(std::string op, ExpressionPtr left, ExpressionPtr right) const {
    ExpressionPtr out = make(Kind::kBinary, std::move(op));
    out->children.push_back(std::move(left));
    out->children.push_back(std::move(right));
    return out;
  }

  ExpressionPtr expression() {
    const Nested nested(*this);
    ExpressionPtr value = or_expression();
    while (take_word("if")) {
      ExpressionPtr out = make(Kind::kConditional);
      out->children.push_back(std::move(value));
      out->children.push_back(or_expression());
      out->children.push_back(take_word("else") ? expression() : nullptr);
      value = std::move(out);
    }
    return value;
  }

  ExpressionPtr or_expression() {
    ExpressionPtr left = and_expression();
    while (take_word("or")) left = binary("or", std::move(left), and_expression());
    return left;
  }
  ExpressionPtr and_expression() {
    ExpressionPtr left = not_expression();
    while (take_word("and")) left = binary("and", std::move(left), not_expression());
    return left;
  }
  ExpressionPtr not_expression() {
    if (!take_word("not")) return comparison();
    const Nested nested(*this);
    ExpressionPtr out = make(Kind::kUnary, "not");
    out->children.push_back(not_expression());
    return out;
  }
  ExpressionPtr comparison() {
    ExpressionPtr left = sum();
    while (true) {
      std::string op;
      for (const std::string_view each : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (take_operator(each)) {
          op = each;
          break;
        }
      }
      if (op.empty() && take_word("in")) op = "in";
      if (op.empty() && is_word("not") && token(1).text == "in") {
        at_ += 2;
        op = "not in";
      }
      if (op.empty()) return left;
      left = binary(op, std::move(left), sum());
    }
  }
  template <typename Next>
  ExpressionPtr chain(std::initializer_list<std::string_view> operators, Next next) {
    ExpressionPtr left = next();
    while (true) {
      const auto op = std::ranges::find_if(operators, [&](std::string_view each) { return is_operator(each); });
      if (op == operators.end()) return left;
      ++at_;
      left = binary(std::string(*op), std::move(left), next());
    }
  }
  ExpressionPtr sum() {
    return chain({"+", "-"}, [&] { return concatenation(); });
  }
  ExpressionPtr concatenation() {
    return chain({"~"}, [&] { return term(); });
  }
  ExpressionPtr term() {
    return chain({"*", "//", "/", "%"}, [&] { return unary(); });
  }
  ExpressionPtr unary() {
    if (take_operator("-")) {
      const Nested nested(*this);
      ExpressionPtr out = make(Kind::kUnary, "-");
      out->children.push_back(unary());
      return out;
    }
    return filtered(postfix(primary()));
  }

  /// Filters and tests, which bind closer than operators.
  ExpressionPtr filtered(ExpressionPtr value) {
    while (true) {
      if (take_operator("|")) {
        ExpressionPtr out = make(Kind::kFilter, expect_name());
        if (!is_filter(out->name)) fail(fmt::format("the filter {} is not supported", out->name));
        out->children.push_back(std::move(value));
        if (take_operator("(")) take_arguments(*out);
        value = std::move(out);
      } else if (take_word("is")) {
        ExpressionPtr out = make(Kind::kTest);
        out->negated = take_word("not");
        out->name = expect_name();
        if (!is_test(out->name)) fail(fmt::format("the test {} is not supported", out->name));
        out->children.push_back(std::move(value));
        value = std::move(out);
      } else {
        return value;
      }
    }
  }

  ExpressionPtr postfix(ExpressionPtr value) {
    while (true) {
      if (take_operator(".")) {
        const std::string name = expect_name();
        const bool call = take_operator("(");
        ExpressionPtr out = make(call ? Kind::kCall : Kind::kAttribute, name);
        out->children.push_back(std::move(value));
        if (call) {
          out->is_method = true;
          if (!is_method(name)) fail(fmt::format("the method .{}() is not supported", name));
          take_arguments(*out);
        }
        value = std::move(out);
      } else if (take_operator("[")) {
        value = subscript(std::move(value));
      } else if (is_operator("(")) {
        if (value->kind != Kind::kName) fail("only functions and methods can be called");
        ++at_;
        ExpressionPtr out = make(Kind::kCall, value->name);
        if (!is_function(out->name)) fail(fmt::format("the function {}() is not supported", out->name));
        take_arguments(*out);
        value = std::move(out);
      } else {
        return value;
      }
    }
  }

  ExpressionPtr subscript(ExpressionPtr value) {
    ExpressionPtr first = is_operator(":") ? nullptr : expression();
    ExpressionPtr out = make(Kind::kIndex);
    out->children.push_back(std::move(value));
    out->children.push_back(std::move(first));
    if (take_operator(":")) {
      out->kind = Kind::kSlice;
      out->children.push_back(is_operator("]") || is_operator(":") ? nullptr : expression());
      // A step: only the one that turns a list round is in use.
      if (take_operator(":")) out->children.push_back(is_operator("]") ? nullptr : expression());
    }
    expect_operator("]");
    return out;
  }

  void take_arguments(Expression& call) {
    while (!take_operator(")")) {
      if (token().kind == Token::Kind::kName && token(1).kind == Token::Kind::kOperator && token(1).text == "=") {
        std::string name = expect_name();
        expect_operator("=");
        call.named.emplace_back(std::move(name), expression());
      } else {
        call.children.push_back(expression());
      }
      if (!is_operator(")")) expect_operator(",");
    }
  }

  ExpressionPtr literal(Value value) const {
    ExpressionPtr out = make(Kind::kLiteral);
    out->value = std::move(value);
    return out;
  }

  ExpressionPtr number() {
    const Token& digits = tokens_[at_++];
    if (digits.kind == Token::Kind::kInteger) {
      std::int64_t whole = 0;
      std::from_chars(digits.text.data(), digits.text.data() + digits.text.size(), whole);
      return literal(whole);
    }
    double value = 0;
    std::from_chars(digits.text.data(), digits.text.data() + digits.text.size(), value);
    return literal(value);
  }

  ExpressionPtr primary() {
    const Nested nested(*this);
    const Token& first = token();
    switch (first.kind) {
      case Token::Kind::kInteger:
      case Token::Kind::kFloat:
        return number();
      case Token::Kind::kString: {
        std::string text = tokens_[at_++].text;
        while (token().kind == Token::Kind::kString) text += tokens_[at_++].text;
        return literal(std::move(text));
      }
      case Token::Kind::kName: {
        const std::string name = tokens_[at_++].text;
        if (name == "true" || name == "True") return literal(true);
        if (name == "false" || name == "False") return literal(false);
        if (name == "none" || name == "None") return literal(nullptr);
        return make(Kind::kName, name);
      }
      default:
        break;
    }
    if (take_operator("(")) return parenthesis();
    if (take_operator("[")) return items(Kind::kList, "]");
    if (take_operator("{")) return mapping();
    fail("a value is expected");
  }

  ExpressionPtr parenthesis() {
    ExpressionPtr first = expression();
    if (!is_operator(",")) {
      expect_operator(")");
      return first;
    }
    ExpressionPtr out = make(Kind::kList);  // a tuple
    out->children.push_back(std::move(first));
    while (take_operator(",")) {
      if (!is_operator(")")) out->children.push_back(expression());
    }
    expect_operator(")");
    return out;
  }

  ExpressionPtr items(Kind kind, std::string_view close) {
    ExpressionPtr out = make(kind);
    while (!take_operator(close)) {
      out->children.push_back(expression());
      if (!is_operator(close)) expect_operator(",");
    }
    return out;
  }

  ExpressionPtr mapping() {
    ExpressionPtr out = make(Kind::kMapping);
    while (!take_operator("}")) {
      out->children.push_back(expression());
      expect_operator(":");
      out->children.push_back(expression());
      if (!is_operator("}")) expect_operator(",");
    }
    return out;
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

Body parse_template(std::string_view source) { return TemplateParser(tokenise_template(source)).run(); }

}  // namespace trireme::serve::chat
