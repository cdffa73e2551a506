#include "trireme/data/tokenizer/tokenizer.h"

#include <xxhash.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "trireme/base/error.h"
#include "trireme/base/new_file.h"
#include "trireme/data/tokenizer/added_tokens.h"
#include "trireme/data/tokenizer/decoder.h"
#include "trireme/data/tokenizer/encoding_model.h"
#include "trireme/data/tokenizer/normalizer.h"
#include "trireme/data/tokenizer/pre_tokenizer.h"
#include "trireme/data/tokenizer/utf8_text.h"

namespace trireme::data {
namespace {

constexpr std::int32_t kEndOfBytes = 256;

/// 0 stands for "unknown" in shards.
std::uint64_t hash_of(std::string_view text) {
  return std::max<std::uint64_t>(XXH3_64bits(text.data(), text.size()), 1);
}

/// The ids before and after a text, of every template in order.
void add_template(const PostProcessorPart& part, std::vector<std::int32_t>& before, std::vector<std::int32_t>& after) {
  for (const PostProcessorPart& inner : part.parts) add_template(inner, before, after);
  std::vector<std::int32_t> outer;
  bool passed = false;
  for (const TemplatePiece& piece : part.single) {
    if (!piece.sequence.empty()) {
      passed = true;
      continue;
    }
    const auto token = std::ranges::find(part.special_tokens, piece.token, &TemplateToken::name);
    auto& to = passed ? after : outer;
    to.insert(to.end(), token->ids.begin(), token->ids.end());
  }
  before.insert(before.begin(), outer.begin(), outer.end());
}

std::vector<AddedTokenFinder::Pattern> patterns(const TokenizerDescription& description, const Normalizer& normalizer,
                                                bool normalized) {
  std::vector<AddedTokenFinder::Pattern> found;
  std::string memory;
  for (const AddedToken& token : description.added_tokens) {
    if (token.normalized != normalized) continue;
    const std::string_view text = normalized ? normalizer.apply(token.content, memory) : token.content;
    found.push_back({std::string(text), token});
  }
  return found;
}

}  // namespace

/// Everything that encoding and decoding use, built once; and what threads borrow while they encode.
struct Tokenizer::Pipeline {
  struct Scratch {
    explicit Scratch(const EncodingModel& kind) : model(scratch_for(kind)) {}
    ModelScratch model;
    std::string normalized;
    std::vector<AddedTokenFinder::Found> raw, cooked;
  };

  explicit Pipeline(const TokenizerDescription& description)
      : normalizer(description.normalizer ? Normalizer(*description.normalizer) : Normalizer()),
        raw(patterns(description, normalizer, false)),
        cooked(patterns(description, normalizer, true)),
        pre_tokenizer(description.pre_tokenizer ? PreTokenizer(*description.pre_tokenizer) : PreTokenizer()),
        model(make_model(description)),
        decoder(description.decoder ? TokenDecoder(*description.decoder) : TokenDecoder()) {
    if (description.post_processor) add_template(*description.post_processor, before, after);
    for (std::size_t i = 0; i < description.added_tokens.size(); ++i)
      numbers.emplace(description.added_tokens[i].content, description.added_tokens[i].id);
    for (const auto& [token, id] : description.vocabulary()) numbers.emplace(token, id);
  }

  std::unique_ptr<Scratch> take() {
    const std::scoped_lock lock(mutex);
    if (idle.empty()) return std::make_unique<Scratch>(model);
    auto scratch = std::move(idle.back());
    idle.pop_back();
    return scratch;
  }
  void give_back(std::unique_ptr<Scratch> scratch) {
    const std::scoped_lock lock(mutex);
    idle.push_back(std::move(scratch));
  }

  void encode(std::string_view text, Scratch& scratch, std::vector<std::int32_t>& ids) const {
    std::visit([&](const auto& kind) { encode_with(kind, text, scratch, ids); }, model);
  }

  template <typename Model>
  void encode_with(const Model& kind, std::string_view text, Scratch& scratch, std::vector<std::int32_t>& ids) const {
    scratch.raw.clear();
    raw.find(text, scratch.raw);
    for (const AddedTokenFinder::Found& part : scratch.raw) {
      if (part.id >= 0) {
        ids.push_back(part.id);
      } else {
        encode_plain(kind, text.substr(part.begin, part.end - part.begin), part.begin == 0, scratch, ids);
      }
    }
  }

  template <typename Model>
  void encode_plain(const Model& kind, std::string_view text, bool first, Scratch& scratch,
                    std::vector<std::int32_t>& ids) const {
    auto& memory = std::get<typename Model::Scratch>(scratch.model);
    const std::string_view normalized = normalizer.apply(text, scratch.normalized);
    scratch.cooked.clear();
    cooked.find(normalized, scratch.cooked);
    for (const AddedTokenFinder::Found& part : scratch.cooked) {
      if (part.id >= 0) {
        ids.push_back(part.id);
        continue;
      }
      pre_tokenizer.cut(normalized.substr(part.begin, part.end - part.begin), first && part.begin == 0,
                        [&](std::string_view piece) { kind.encode(piece, memory, ids); });
    }
  }

  Normalizer normalizer;
  AddedTokenFinder raw, cooked;  // in the text as it is, and as it is normalized
  PreTokenizer pre_tokenizer;
  EncodingModel model;
  TokenDecoder decoder;
  std::vector<std::int32_t> before, after;
  std::unordered_map<std::string, std::int32_t> numbers;
  std::mutex mutex;
  std::vector<std::unique_ptr<Scratch>> idle;
};

Tokenizer::Tokenizer() = default;
Tokenizer::~Tokenizer() = default;

std::unique_ptr<Tokenizer> Tokenizer::bytes() {
  std::unique_ptr<Tokenizer> made(new Tokenizer());
  made->source_ = "bytes";
  for (int byte = 0; byte < 256; ++byte) made->bytes_.emplace_back(1, static_cast<char>(byte));
  made->bytes_.emplace_back();
  made->special_.assign(made->bytes_.size(), false);
  made->special_.back() = true;
  made->present_.assign(made->bytes_.size(), true);
  made->roles_.eos = kEndOfBytes;
  made->hash_ = hash_of("trireme bytes 257");
  return made;
}

Tokenizer::Tokenizer(TokenizerDescription description, std::string source)
    : source_(std::move(source)), description_(std::move(description)) {
  with_context(fmt::format("while building the tokenizer {}", source_),
               [&] { pipeline_ = std::make_unique<Pipeline>(description_); });
  const auto add = [&](std::int32_t id, const std::string& text, bool special) {
    const auto at = static_cast<std::size_t>(id);
    if (texts_.size() <= at) {
      texts_.resize(at + 1);
      special_.resize(at + 1);
      present_.resize(at + 1);
    }
    texts_[at] = text;
    special_[at] = special;
    present_[at] = true;
  };
  for (const auto& [token, id] : description_.vocabulary()) add(id, token, false);
  for (const AddedToken& token : description_.added_tokens) add(token.id, token.content, token.special);
  bytes_.resize(texts_.size());
  for (std::size_t i = 0; i < texts_.size(); ++i)
    if (present_[i] && !special_[i]) bytes_[i] = pipeline_->decoder.bytes_of(texts_[i]);
  hash_ = hash_of(tokenizer_json(description_));
}

void Tokenizer::encode(std::string_view text, EncodeOptions options, std::vector<std::int32_t>& ids) const {
  if (is_bytes()) {
    ids.reserve(ids.size() + text.size());
    for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
    return;
  }
  if (const std::size_t bad = first_invalid_utf8(text); bad != text.npos)
    throw ConfigError(fmt::format("the text is not UTF-8: the byte {:#04x} at byte {} of {} begins no character",
                                  static_cast<unsigned char>(text[bad]), bad, text.size()),
                      "convert it to UTF-8, or use the tokenizer \"bytes\", which takes any bytes");
  if (options.add_special) ids.insert(ids.end(), pipeline_->before.begin(), pipeline_->before.end());
  auto scratch = pipeline_->take();
  pipeline_->encode(text, *scratch, ids);
  pipeline_->give_back(std::move(scratch));
  if (options.add_special) ids.insert(ids.end(), pipeline_->after.begin(), pipeline_->after.end());
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::vector<std::int32_t> ids;
  encode(text, options, ids);
  return ids;
}

void Tokenizer::check_id(std::int32_t id) const {
  if (id >= 0 && id < vocab_size() && present_[static_cast<std::size_t>(id)]) return;
  throw ConfigError(fmt::format("{} has no token {}; its ids go from 0 to {}", source_, id, vocab_size() - 1),
                    "was the text encoded with another tokenizer?");
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, DecodeOptions options) const {
  std::vector<std::string> tokens;
  std::string bytes;
  for (const std::int32_t id : ids) {
    check_id(id);
    const auto at = static_cast<std::size_t>(id);
    if (options.skip_special && special_[at]) continue;
    is_bytes() ? void(bytes += bytes_[at]) : tokens.push_back(texts_[at]);
  }
  return is_bytes() ? with_replacement_characters(bytes) : pipeline_->decoder.decode(std::move(tokens));
}

std::string_view Tokenizer::token_bytes(std::int32_t id) const {
  return id >= 0 && id < vocab_size() ? std::string_view(bytes_[static_cast<std::size_t>(id)]) : std::string_view();
}

bool Tokenizer::is_special(std::int32_t id) const {
  return id >= 0 && id < vocab_size() && special_[static_cast<std::size_t>(id)];
}

std::optional<std::int32_t> Tokenizer::find(std::string_view content) const {
  if (is_bytes()) return std::nullopt;
  const auto found = pipeline_->numbers.find(std::string(content));
  return found == pipeline_->numbers.end() ? std::nullopt : std::optional(found->second);
}

void Tokenizer::save(const std::filesystem::path& path) const {
  if (is_bytes())
    throw ConfigError("the tokenizer \"bytes\" has no tokenizer.json", "name it where a file is asked for");
  write_text_file(path, tokenizer_json(description_));
}

std::string StreamDecoder::push(std::int32_t id) {
  tokenizer_.check_id(id);
  const auto at = static_cast<std::size_t>(id);
  if (tokenizer_.special_[at]) return {};
  if (!tokenizer_.is_bytes() && !begun_) {
    held_ += tokenizer_.pipeline_->decoder.first_bytes_of(tokenizer_.texts_[at]);
  } else {
    held_ += tokenizer_.bytes_[at];
  }
  begun_ = true;
  const std::size_t unfinished = unfinished_utf8(held_);
  std::string out = with_replacement_characters(std::string_view(held_).substr(0, held_.size() - unfinished));
  held_.erase(0, held_.size() - unfinished);
  return out;
}

std::string StreamDecoder::finish() { return with_replacement_characters(std::exchange(held_, {})); }

}  // namespace trireme::data
