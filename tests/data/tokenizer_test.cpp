#include "trireme/data/tokenizer/tokenizer.h"

#include <gmock/gmock.h>

#include <thread>

#include "tests/data/tokenizer_samples.h"
#include "trireme/data/tokenizer/normalizer.h"
#include "trireme/data/tokenizer/unigram_model.h"

namespace trireme::data {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

TEST(Tokenizer, GivesTheTokensOfTheReference) {
  const auto texts = read_fixture("texts.json").get<std::vector<std::string>>();
  for (const std::string& name : fixture_names()) {
    const auto tokenizer = fixture_tokenizer(name);
    const auto cases = read_fixture(name + ".cases.json");
    ASSERT_EQ(cases.size(), texts.size()) << name;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      SCOPED_TRACE(name + " " + formats::python_string(texts[i]));
      EXPECT_EQ(tokenizer->encode(texts[i]), cases[i][0].get<Ids>());
      EXPECT_EQ(tokenizer->encode(texts[i], {.add_special = false}), cases[i][1].get<Ids>());
    }
  }
}

TEST(Tokenizer, DecodesAsTheReference) {
  for (const std::string& name : fixture_names()) {
    const auto tokenizer = fixture_tokenizer(name);
    for (const auto& item : read_fixture(name + ".cases.json")) {
      SCOPED_TRACE(name + " " + item.dump());
      EXPECT_EQ(tokenizer->decode(item[0].get<Ids>(), {.skip_special = false}), item[2].get<std::string>());
      EXPECT_EQ(tokenizer->decode(item[1].get<Ids>()), item[3].get<std::string>());
    }
  }
}

TEST(Tokenizer, StreamsTheTextThatDecodingGives) {
  for (const std::string name :
       {"gpt2", "llama3", "qwen", "llama2", "mistral", "bert", "wordpiece", "t5", "unigram_bytes", "nfkc"}) {
    const auto tokenizer = fixture_tokenizer(name);
    for (const auto& item : read_fixture(name + ".cases.json")) {
      StreamDecoder stream(*tokenizer);
      std::string text;
      for (const std::int32_t id : item[0].get<Ids>()) {
        text += stream.push(id);
        EXPECT_EQ(first_invalid_utf8(text), text.npos) << "only whole characters are given out";
      }
      text += stream.finish();
      EXPECT_EQ(text, tokenizer->decode(item[0].get<Ids>())) << name << " " << item.dump();
    }
  }
}

TEST(Tokenizer, AStreamReplacesWhatIsNeverFinished) {
  const auto tokenizer = Tokenizer::bytes();
  StreamDecoder stream(*tokenizer);
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.push(0x82), "");
  EXPECT_EQ(stream.push(0xAC), "€");
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.push('a'), "\uFFFDa");
  EXPECT_EQ(stream.push(0xFF), "\uFFFD");
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push(256), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

// The bytes of a text's tokens are the text's bytes: bits per byte can be counted by tokens.
TEST(Tokenizer, TokenBytesAddUpToTheText) {
  std::mt19937_64 draw(1);
  for (const std::string name : {"gpt2", "llama3", "llama2"}) {
    const auto tokenizer = fixture_tokenizer(name);
    for (int round = 0; round < 50; ++round) {
      // Llama 2's spaces are a sign of their own, which is a space again afterwards; the first is put there.
      std::string text = random_text(draw, 40), bytes;
      if (name == "llama2" && text.find("▁") != text.npos) continue;
      for (const std::int32_t id : tokenizer->encode(text)) bytes += tokenizer->token_bytes(id);
      EXPECT_EQ(bytes, name == "llama2" ? " " + text : text) << name;
    }
  }
}

TEST(Tokenizer, SpecialTokensStandForNoBytes) {
  const auto tokenizer = fixture_tokenizer("gpt2");
  const auto end = tokenizer->find("<|endoftext|>");
  ASSERT_TRUE(end);
  EXPECT_TRUE(tokenizer->is_special(*end));
  EXPECT_EQ(tokenizer->token_bytes(*end), "");
  EXPECT_EQ(tokenizer->token_bytes(*tokenizer->find("Ġthe")), " the");
  EXPECT_EQ(tokenizer->token_bytes(-1), "");
  EXPECT_EQ(tokenizer->token_bytes(tokenizer->vocab_size()), "");
  EXPECT_FALSE(tokenizer->find("no such token"));
  EXPECT_EQ(tokenizer->roles().bos, end);
  EXPECT_EQ(tokenizer->roles().eos, end);
}

TEST(Tokenizer, BytesAreTokensOfThemselves) {
  const auto tokenizer = load_tokenizer("bytes");
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->encode("a\xFF\n"), (Ids{'a', 255, '\n'}));
  EXPECT_EQ(tokenizer->decode(Ids{'a', 256, 0xC3, 0xA9}), "aé");
  EXPECT_EQ(tokenizer->roles().eos, 256);
  EXPECT_EQ(tokenizer->token_bytes(0), std::string(1, '\0'));
  EXPECT_NE(tokenizer->hash(), fixture_tokenizer("gpt2")->hash());
  EXPECT_THAT(words_of([&] { tokenizer->save("x"); }), HasSubstr("no tokenizer.json"));
}

// What the library 0.22.2 made of these scores when it read a file and wrote it again.
TEST(Tokenizer, UnigramScoresAreRoundedAsTheReferenceReadsThem) {
  EXPECT_EQ(score_as_read(-2.9728920459747314), -2.972892045974731);
  EXPECT_EQ(score_as_read(-7.5577778816223145), -7.557777881622315);
  EXPECT_EQ(score_as_read(-7.6611738204956055), -7.661173820495605);
  for (const double kept : {0.0, -1.0, -12.5, 1e-7, -0.001, 1e300, 5e-324, 123456.0})
    EXPECT_EQ(score_as_read(kept), kept);
}

// Marks and signs that Unicode has got since the reference's tables were made: they are neither ordered nor decomposed.
TEST(Tokenizer, NormalFormsLeaveNewerCharactersAlone) {
  for (const std::string text : {"a\u0951\u0C3C", "\u0EB8\u0EBA", "\u32FF", "\U0001F16C"})
    for (const NormalForm form : {NormalForm::kC, NormalForm::kD, NormalForm::kKc, NormalForm::kKd})
      EXPECT_EQ(to_normal_form(text, form), text);
  EXPECT_EQ(to_normal_form("x\uFB01 e\u0301\u0323 \u00BD", NormalForm::kKc), "xfi \u1EB9\u0301 1\u20442");
  EXPECT_EQ(to_normal_form("\u00E9\uAC00", NormalForm::kD), "e\u0301\u1100\u1161");
  EXPECT_EQ(to_lowercase("\u0130\u03A3 \u00C9Z"), "i\u0307\u03C3 \u00E9z");
}

TEST(Tokenizer, SeveralThreadsMayEncodeAtOnce) {
  const auto texts = read_fixture("texts.json").get<std::vector<std::string>>();
  for (const std::string name : {"qwen", "odd", "bert", "t5"}) {
    const auto tokenizer = fixture_tokenizer(name);
    const auto cases = read_fixture(name + ".cases.json");
    std::vector<std::thread> threads;
    std::vector<int> wrong(4);
    for (std::size_t thread = 0; thread < wrong.size(); ++thread) {
      threads.emplace_back([&, thread] {
        for (std::size_t i = 0; i < texts.size(); ++i)
          wrong[thread] += tokenizer->encode(texts[i]) != cases[i][0].get<Ids>();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, std::vector<int>(4)) << name;
  }
}

TEST(Tokenizer, SaysWhichNumberHasNoToken) {
  const auto tokenizer = fixture_tokenizer("gpt2");
  EXPECT_THAT(words_of([&] {
                tokenizer->decode(Ids{1, 900});
              }),
              HasSubstr("has no token 900; its ids go from 0 to 899"));
  EXPECT_THAT(words_of([&] { tokenizer->decode(Ids{-1}); }), HasSubstr("has no token -1"));
}

TEST(Tokenizer, SaysWhereATextIsNotUtf8) {
  const auto tokenizer = fixture_tokenizer("llama3");
  for (const std::string bad : {"abc\xFFxyz", "abc\xC3", "abc\xED\xA0\x80", "abc\xF4\x90\x80\x80", "abc\x80"})
    EXPECT_THAT(words_of([&] { tokenizer->encode(bad); }), HasSubstr("at byte 3 of"));
}

using TokenizerLoad = OwnFolder;

TEST_F(TokenizerLoad, TakesFoldersAndTheRolesOfTokens) {
  write_all(folder_ / "tokenizer.json", read_all(tokenizer_fixtures() / "qwen.json"));
  EXPECT_EQ(load_tokenizer(folder_)->roles().eos, fixture_tokenizer("qwen")->find("<|endoftext|>"));
  write_all(folder_ / "tokenizer_config.json",
            R"({"bos_token": null, "eos_token": {"content": "<|im_end|>", "lstrip": false}, "more": 1})");
  const auto tokenizer = load_tokenizer(folder_);
  EXPECT_EQ(tokenizer->roles().bos, std::nullopt);
  EXPECT_EQ(tokenizer->roles().eos, tokenizer->find("<|im_end|>"));
  EXPECT_EQ(tokenizer->hash(), fixture_tokenizer("qwen")->hash()) << "the roles change no token";
  write_all(folder_ / "tokenizer_config.json", R"({"eos_token": "<nothing>"})");
  EXPECT_THAT(words_of([&] { load_tokenizer(folder_); }), HasSubstr("eos_token: \"\\\"<nothing>\\\"\" is no token of"));
}

TEST_F(TokenizerLoad, SaysWhatItTakes) {
  EXPECT_THAT(words_of([&] { load_tokenizer(folder_); }), HasSubstr("holds no tokenizer.json"));
  EXPECT_THAT(words_of([&] { load_tokenizer("nowhere.json"); }), HasSubstr("or the word bytes"));
}

}  // namespace
}  // namespace trireme::data
