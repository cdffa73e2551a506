#include "trireme/data/corpus/chat.h"

#include <gmock/gmock.h>

#include "tests/data/tokenizer_samples.h"
#include "trireme/data/corpus/tokenize_corpus.h"
#include "trireme/data/token_file.h"

namespace trireme::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

Conversation conversation_of(std::string_view text) {
  formats::JsonReader json(text, "t.jsonl");
  Conversation made = read_conversation(json);
  json.end();
  return made;
}

/// A fixture with more special tokens.
std::unique_ptr<Tokenizer> with_tokens(const std::string& name, const std::vector<std::string>& tokens) {
  TokenizerDescription description = parse_tokenizer_json(read_all(tokenizer_fixtures() / (name + ".json")), name);
  for (const std::string& token : tokens) {
    std::int32_t next = static_cast<std::int32_t>(description.vocabulary().size());
    for (const AddedToken& added : description.added_tokens) next = std::max(next, added.id + 1);
    description.added_tokens.push_back({.id = next, .content = token, .special = true});
  }
  return std::make_unique<Tokenizer>(std::move(description), name);
}

constexpr const char* kTalk =
    R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"},
        {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Bye"},
        {"role": "assistant", "content": "So long.", "weight": 1}])";

TEST(Chat, OnlyAnswersAreLearntWithTheTokenThatEndsThem) {
  const auto tokenizer = fixture_tokenizer("qwen");
  Ids ids;
  std::vector<std::uint8_t> learnt;
  ChatEncoder(ChatFormat::kChatMl, *tokenizer).encode(conversation_of(kTalk), std::nullopt, ids, learnt);
  EXPECT_EQ(tokenizer->decode(ids, {.skip_special = false}),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n"
            "Hello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\nSo long.<|im_end|>\n");
  ASSERT_EQ(ids.size(), learnt.size());
  Ids targets;
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (learnt[i] == 1) targets.push_back(ids[i]);
  EXPECT_EQ(tokenizer->decode(targets, {.skip_special = false}), "Hello.<|im_end|>So long.<|im_end|>");
}

// At inference the prompt is encoded by itself, and what is generated follows it.
TEST(Chat, ThePromptIsEncodedAsAtInference) {
  const auto tokenizer = fixture_tokenizer("qwen");
  Ids ids;
  std::vector<std::uint8_t> learnt;
  ChatEncoder(ChatFormat::kChatMl, *tokenizer)
      .encode({{"user", "Hi"}, {"assistant", "\n\nindeed"}}, std::nullopt, ids, learnt);
  const Ids prompt = tokenizer->encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  ASSERT_GT(ids.size(), prompt.size());
  EXPECT_EQ(Ids(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(prompt.size())), prompt);
  EXPECT_EQ(learnt[prompt.size() - 1], 0);
  EXPECT_EQ(learnt[prompt.size()], 1);
}

TEST(Chat, Llama3BeginsWithItsTokenAndHasHeaders) {
  const auto tokenizer = with_tokens("llama3", {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"});
  Ids ids;
  std::vector<std::uint8_t> learnt;
  const auto eot = tokenizer->find("<|eot_id|>");
  const ChatEncoder encoder(ChatFormat::kLlama3, *tokenizer);
  encoder.encode({{"user", "Hi"}, {"assistant", "Yes"}}, eot, ids, learnt);
  EXPECT_EQ(tokenizer->decode(ids, {.skip_special = false}),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nYes<|eot_id|>")
      << "a conversation that ends with the token that ends texts gets no second one";
  EXPECT_EQ(learnt.back(), 1);
  ids.clear();
  learnt.clear();
  encoder.encode({{"user", "Hi"}, {"assistant", "Yes"}}, tokenizer->find("<|end_of_text|>"), ids, learnt);
  EXPECT_EQ(ids.back(), tokenizer->find("<|end_of_text|>"));
  EXPECT_EQ(learnt.back(), 0);
}

TEST(Chat, TakesTheOtherNamesOfMembersAndRoles) {
  const Conversation made = conversation_of(
      R"([{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "tool", "value": "c"}])");
  ASSERT_EQ(made.size(), 3U);
  EXPECT_EQ(made[0].role, "user");
  EXPECT_EQ(made[1].role, "assistant");
  EXPECT_EQ(made[2].role, "tool");
}

TEST(Chat, SaysWhatIsWrongInAConversation) {
  const auto said = [](std::string_view text) { return words_of([&] { conversation_of(text); }); };
  EXPECT_THAT(said(R"([{"role": "user"}])"), AllOf(HasSubstr("a message has no content"), HasSubstr("(byte 1)")));
  EXPECT_THAT(said(R"([{"content": "x"}])"), HasSubstr("a message has no role"));
  EXPECT_THAT(said(R"([{"role": "user", "content": ["x"]}])"), HasSubstr("\"content\" of a message is no text"));
  EXPECT_THAT(said(R"([{"role": "user", "from": "x", "content": "x"}])"), HasSubstr("is there twice"));
  EXPECT_THAT(said(R"([{"role": "user", "content": "x"}])"), HasSubstr("no message is the assistant's"));
  EXPECT_THAT(said("[]"), HasSubstr("no message is the assistant's"));
}

TEST(Chat, NamesTheTokenThatATokenizerLacksAndTheFormatThatFits) {
  EXPECT_THAT(
      words_of([] { ChatEncoder(ChatFormat::kChatMl, *fixture_tokenizer("gpt2")); }),
      AllOf(HasSubstr("has no token <|im_start|>, which --chat chatml is written with"), HasSubstr("--special")));
  EXPECT_THAT(words_of([] { ChatEncoder(ChatFormat::kLlama3, *fixture_tokenizer("qwen")); }),
              HasSubstr("this tokenizer's format is --chat chatml"));
}

using ChatCorpus = OwnFolder;

TEST_F(ChatCorpus, BecomesShardsWithLossMasks) {
  write_all(folder_ / "t.jsonl",
            R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]})"
            "\n");
  const auto tokenizer = fixture_tokenizer("qwen");
  TokenizeOptions options{.out = folder_ / "out", .chat = ChatFormat::kChatMl};
  options.progress.every = std::chrono::milliseconds::max();
  const Corpus corpus({folder_ / "t.jsonl"}, {.field = "messages"});
  const TokenizeResult made = tokenize_corpus(corpus, *tokenizer, options);
  ASSERT_EQ(made.documents, 1U);
  const TokenFile shard(made.shards.at(0));
  ASSERT_TRUE(shard.has_mask());
  Ids ids(static_cast<std::size_t>(shard.tokens()));
  std::vector<std::uint8_t> learnt(ids.size());
  shard.read(0, ids);
  shard.read_mask(0, learnt);
  Ids targets;
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (learnt[i] == 1) targets.push_back(ids[i]);
  EXPECT_EQ(tokenizer->decode(targets, {.skip_special = false}), "Yes<|im_end|>");
  EXPECT_EQ(made.learnt, targets.size());
  EXPECT_EQ(ids.back(), tokenizer->roles().eos);

  write_all(folder_ / "bad.jsonl", "{\"messages\": \"Hi\"}\n");
  options.out = folder_ / "other";
  EXPECT_THAT(
      words_of([&] { tokenize_corpus(Corpus({folder_ / "bad.jsonl"}, {.field = "messages"}), *tokenizer, options); }),
      HasSubstr("line 1: the field \"messages\" is no list of messages"));
  write_all(folder_ / "bad.txt", "Hi\n");
  EXPECT_THAT(words_of([&] { tokenize_corpus(Corpus({folder_ / "bad.txt"}, {}), *tokenizer, options); }),
              HasSubstr("bad.txt holds no conversations"));
}

}  // namespace
}  // namespace trireme::data
