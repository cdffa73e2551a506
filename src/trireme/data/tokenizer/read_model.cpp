#include "trireme/data/tokenizer/read_parts.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <unordered_map>

namespace trireme::data {
namespace {

using formats::JsonReader;
using formats::shown;

/// Token numbers may leave gaps, but not claim memory that the file does not fill.
constexpr std::int64_t kMostUnused = 65536;

/// The members of all kinds; which ones a file may have is checked when its type is known.
class ModelReader {
 public:
  explicit ModelReader(JsonReader& json) : json_(json) {}

  ModelDescription read() {
    begin_ = json_.value_position();
    json_.object([&](const std::string& key) { read_member(key); });
    const std::string type = type_.empty() ? type_by_members() : type_;
    if (type == "BPE") return bpe();
    if (type == "WordPiece") return wordpiece();
    if (type == "Unigram") return unigram();
    json_.fail(begin_, fmt::format("model: the type {} is not supported", shown(type)),
               "Trireme reads models of the types BPE, WordPiece and Unigram");
  }

 private:
  struct NamedMerge {
    std::string left, right;
    std::uint64_t byte;
  };

  bool has(const std::string& key) const { return at_.contains(key); }

  std::string type_by_members() const {
    if (has("merges")) return "BPE";
    if (has("max_input_chars_per_word")) return "WordPiece";
    if (!scores_.empty()) return "Unigram";
    json_.fail(begin_, "model: the type is missing");
  }

  void read_member(const std::string& key) {
    static constexpr std::array<std::string_view, 3> kFlags{"fuse_unk", "byte_fallback", "ignore_merges"};
    static constexpr std::array<std::string_view, 4> kTexts{"type", "unk_token", "continuing_subword_prefix",
                                                            "end_of_word_suffix"};
    static constexpr std::array<std::string_view, 2> kNumbers{"unk_id", "max_input_chars_per_word"};
    if (!at_.emplace(key, json_.value_position()).second)
      json_.fail(json_.key_position(), fmt::format("model: the key {} is there twice", shown(key)));
    if (json_.peek() == JsonReader::Kind::kNull) return json_.null();
    const auto is_one_of = [&](const auto& names) { return std::ranges::find(names, key) != names.end(); };
    if (key == "vocab") {
      json_.peek() == JsonReader::Kind::kArray ? read_scored_vocabulary() : read_vocabulary();
    } else if (key == "merges") {
      read_merges();
    } else if (key == "type") {
      type_ = json_.string();
    } else if (is_one_of(kTexts)) {
      texts_[key] = json_.string();
    } else if (is_one_of(kFlags)) {
      flags_[key] = json_.boolean();
    } else if (is_one_of(kNumbers)) {
      numbers_[key] = json_.whole_number();
    } else if (key == "dropout") {
      dropout_ = std::visit([](auto number) { return number != 0; }, json_.number());
    } else {
      json_.fail(json_.key_position(), fmt::format("model: the key {} is not supported", shown(key)));
    }
  }

  void add_token(std::string token, std::int64_t id) {
    if (!ids_.emplace(token, static_cast<std::int32_t>(id)).second)
      json_.fail(json_.key_position(), fmt::format("model.vocab: the token {} is there twice", shown(token)));
    vocabulary_.emplace_back(std::move(token), static_cast<std::int32_t>(id));
  }

  void read_vocabulary() {
    json_.object([&](std::string token) {
      const std::uint64_t at = json_.value_position();
      const std::int64_t id = json_.whole_number();
      if (id >= std::numeric_limits<std::int32_t>::max())
        json_.fail(at, fmt::format("model.vocab: {} has the id {}, which is too large", shown(token), id));
      add_token(std::move(token), id);
    });
  }

  void read_scored_vocabulary() {
    json_.array([&] {
      const std::uint64_t at = json_.value_position();
      int parts = 0;
      std::string token;
      json_.array([&] {
        if (parts++ == 0) {
          token = json_.string();
        } else {
          scores_.push_back(std::visit([](auto number) { return static_cast<double>(number); }, json_.number()));
        }
      });
      if (parts != 2) json_.fail(at, fmt::format("model.vocab: a token has a text and a score, not {} values", parts));
      if (ids_.contains(token)) json_.fail(at, fmt::format("model.vocab: the token {} is there twice", shown(token)));
      add_token(std::move(token), static_cast<std::int64_t>(vocabulary_.size()));
    });
  }

  void read_merges() {
    json_.array([&] {
      NamedMerge merge{.byte = json_.value_position()};
      if (json_.peek() == JsonReader::Kind::kString) {
        const std::string text = json_.string();
        if (text.starts_with("#version")) return;
        const std::size_t space = text.find(' ');
        if (space == text.npos || text.find(' ', space + 1) != text.npos)
          json_.fail(merge.byte, fmt::format("model.merges: {} is not two tokens with a space between", shown(text)));
        merge.left = text.substr(0, space);
        merge.right = text.substr(space + 1);
      } else {
        int parts = 0;
        json_.array([&] { (parts++ == 0 ? merge.left : merge.right) = json_.string(); });
        if (parts != 2) json_.fail(merge.byte, fmt::format("model.merges: a merge has two tokens, not {}", parts));
      }
      merges_.push_back(std::move(merge));
    });
  }

  /// Members of the other kinds are refused, as they were if nobody knew them; null says nothing.
  void allow(std::initializer_list<std::string_view> keys) const {
    for (const auto& [key, at] : at_) {
      const bool said = texts_.contains(key) || flags_.contains(key) || numbers_.contains(key) ||
                        (key == "merges" && !merges_.empty()) || (key == "dropout" && dropout_);
      if (said && std::ranges::find(keys, key) == keys.end())
        json_.fail(at, fmt::format("model: the key {} is not supported", shown(key)));
    }
  }
  std::optional<std::string> text(const std::string& key) const {
    const auto found = texts_.find(key);
    return found == texts_.end() ? std::nullopt : std::optional(found->second);
  }
  bool flag(const std::string& key) const {
    const auto found = flags_.find(key);
    return found != flags_.end() && found->second;
  }

  void check_vocabulary() {
    if (!has("vocab")) json_.fail(begin_, "model: vocab is missing");
    if (vocabulary_.empty()) json_.fail(begin_, "model.vocab: is empty");
    std::ranges::sort(vocabulary_, {}, [](const auto& token) { return token.second; });
    for (std::size_t i = 1; i < vocabulary_.size(); ++i) {
      if (vocabulary_[i].second == vocabulary_[i - 1].second)
        json_.fail(begin_, fmt::format("model.vocab: {} and {} have the same id {}", shown(vocabulary_[i - 1].first),
                                       shown(vocabulary_[i].first), vocabulary_[i].second));
    }
    const auto& [last, id] = vocabulary_.back();
    if (id >= static_cast<std::int64_t>(vocabulary_.size()) + kMostUnused)
      json_.fail(begin_, fmt::format("model.vocab: {} has the id {}, but there are only {} tokens", shown(last), id,
                                     vocabulary_.size()));
  }
  /// BPE and WordPiece have ids, Unigram scores.
  void check_vocabulary(bool scored) {
    check_vocabulary();
    if (scored == scores_.empty())
      json_.fail(at_.at("vocab"), scored ? "model.vocab: a list [...] of tokens and scores is expected"
                                         : "model.vocab: an object {...} of tokens and ids is expected");
  }
  void check_unknown(const std::string& token) const {
    if (!ids_.contains(token))
      json_.fail(begin_, fmt::format("model.unk_token: {} is not in the vocabulary", shown(token)));
  }

  BpeDescription bpe() {
    if (!has("vocab") || !has("merges")) json_.fail(begin_, "model: vocab or merges is missing");
    check_vocabulary(/*scored=*/false);
    allow({"merges", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
           "byte_fallback", "ignore_merges"});
    if (dropout_)
      json_.fail(at_.at("dropout"), "model.dropout: merges that are left out at random are not supported",
                 "set it to null");
    for (const std::string key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!text(key).value_or("").empty()) json_.fail(at_.at(key), fmt::format("model.{}: is not supported", key));
    BpeDescription model{.vocabulary = {},
                         .merges = {},
                         .unk_token = text("unk_token"),
                         .fuse_unk = flag("fuse_unk"),
                         .byte_fallback = flag("byte_fallback"),
                         .ignore_merges = flag("ignore_merges")};
    if (model.unk_token) check_unknown(*model.unk_token);
    model.merges = resolved_merges();
    model.vocabulary = std::move(vocabulary_);
    return model;
  }

  WordPieceDescription wordpiece() {
    check_vocabulary(/*scored=*/false);
    allow({"unk_token", "continuing_subword_prefix", "max_input_chars_per_word"});
    WordPieceDescription model;
    model.unk_token = text("unk_token").value_or(model.unk_token);
    model.continuing_subword_prefix = text("continuing_subword_prefix").value_or(model.continuing_subword_prefix);
    if (const auto found = numbers_.find("max_input_chars_per_word"); found != numbers_.end())
      model.max_input_chars_per_word = small(*found);
    check_unknown(model.unk_token);
    model.vocabulary = std::move(vocabulary_);
    return model;
  }

  UnigramDescription unigram() {
    check_vocabulary(/*scored=*/true);
    allow({"unk_id", "byte_fallback"});
    UnigramDescription model{
        .vocabulary = {}, .scores = std::move(scores_), .unk_id = {}, .byte_fallback = flag("byte_fallback")};
    if (const auto found = numbers_.find("unk_id"); found != numbers_.end()) {
      model.unk_id = small(*found);
      if (static_cast<std::size_t>(*model.unk_id) >= vocabulary_.size())
        json_.fail(at_.at("unk_id"),
                   fmt::format("model.unk_id: {} is no token; there are {}", *model.unk_id, vocabulary_.size()));
    }
    model.vocabulary = std::move(vocabulary_);
    return model;
  }

  std::int32_t small(const std::pair<const std::string, std::int64_t>& number) const {
    if (number.second > std::numeric_limits<std::int32_t>::max())
      json_.fail(at_.at(number.first), fmt::format("model.{}: {} is too large", number.first, number.second));
    return static_cast<std::int32_t>(number.second);
  }

  std::vector<BpeMerge> resolved_merges() const {
    const auto number = [&](const NamedMerge& merge, const std::string& token) {
      const auto found = ids_.find(token);
      if (found == ids_.end())
        json_.fail(merge.byte,
                   fmt::format("model.merges: merge {} of {} and {}: {} is not in the vocabulary",
                               &merge - merges_.data(), shown(merge.left), shown(merge.right), shown(token)));
      return found->second;
    };
    std::vector<BpeMerge> resolved;
    resolved.reserve(merges_.size());
    for (const NamedMerge& merge : merges_) {
      if (merge.left.empty() || merge.right.empty())
        json_.fail(merge.byte, "model.merges: a token of a merge is empty");
      resolved.push_back(
          {number(merge, merge.left), number(merge, merge.right), number(merge, merge.left + merge.right)});
    }
    return resolved;
  }

  JsonReader& json_;
  std::uint64_t begin_ = 0;
  std::map<std::string, std::uint64_t> at_;  // where each member's value is
  std::string type_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, bool> flags_;
  std::map<std::string, std::int64_t> numbers_;
  bool dropout_ = false;
  Vocabulary vocabulary_;
  std::vector<double> scores_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<NamedMerge> merges_;
};

}  // namespace

ModelDescription read_model(JsonReader& json) { return ModelReader(json).read(); }

}  // namespace trireme::data
