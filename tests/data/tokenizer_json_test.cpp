#include <gmock/gmock.h>

#include "tests/data/tokenizer_samples.h"
#include "trireme/formats/format_error.h"

namespace trireme::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

std::string written(const Json& json) { return formats::python_json(json, formats::Keys::kAsTheyAre); }

/// What reading says of a fixture after a change.
std::string said_of(const std::string& name, const std::function<void(Json&)>& change) {
  Json json = read_fixture(name + ".json");
  change(json);
  return words_of([&] { Tokenizer(parse_tokenizer_json(written(json), "t.json"), "t.json"); });
}

TEST(TokenizerJson, IsWrittenByteForByteAsTheReferenceWritesIt) {
  for (const std::string name : {"gpt2", "llama3", "qwen", "llama2", "mistral", "prefix_space"}) {
    const std::string text = read_all(tokenizer_fixtures() / (name + ".json"));
    EXPECT_TRUE(tokenizer_json(parse_tokenizer_json(text, name)) == text) << name;
  }
}

// Merges as one text and other white space: the same tokenizer.
TEST(TokenizerJson, ReadsBackAsTheSame) {
  for (const std::string& name : fixture_names()) {
    const auto tokenizer = fixture_tokenizer(name);
    const std::string again = tokenizer_json(parse_tokenizer_json(read_all(tokenizer->source()), name));
    EXPECT_EQ(Tokenizer(parse_tokenizer_json(again, name), name).hash(), tokenizer->hash()) << name;
    EXPECT_EQ(Tokenizer(parse_tokenizer_json(written(read_fixture(name + ".json")), name), name).hash(),
              tokenizer->hash());
  }
}

TEST(TokenizerJson, NamesWhatItDoesNotSupportAndWhere) {
  EXPECT_THAT(said_of("llama3", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["type"] = "Digits"; }),
              AllOf(HasSubstr("t.json: pre_tokenizer.pretokenizers[0]: the type \"Digits\" is not supported"),
                    HasSubstr("(byte "), HasSubstr("ByteLevel, Split, Metaspace and Sequence")));
  EXPECT_THAT(said_of("qwen", [](Json& j) { j["normalizer"]["type"] = "NFKD"; }),
              HasSubstr("normalizer: the type \"NFKD\""));
  EXPECT_THAT(said_of("gpt2", [](Json& j) { j["decoder"]["type"] = "WordPiece"; }), HasSubstr("decoder: the type"));
  EXPECT_THAT(said_of("gpt2", [](Json& j) { j["post_processor"]["type"] = "BertProcessing"; }),
              HasSubstr("post_processor: the type"));
  EXPECT_THAT(said_of("gpt2", [](Json& j) { j["model"]["type"] = "Unigram"; }),
              HasSubstr("model: the type \"Unigram\""));
  EXPECT_THAT(said_of("gpt2", [](Json& j) { j["model"]["dropout"] = 0.1; }), HasSubstr("model.dropout"));
  EXPECT_THAT(said_of("gpt2", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }),
              HasSubstr("model.end_of_word_suffix"));
  EXPECT_THAT(said_of("gpt2",
                      [](Json& j) {
                        j["truncation"] = {{"max_length", 5}};
                      }),
              HasSubstr("truncation: is not supported"));
  EXPECT_THAT(said_of("gpt2", [](Json& j) { j["model"]["news"] = 1; }),
              HasSubstr("model: the key \"news\" is not supported"));
  EXPECT_THAT(said_of("qwen", [](Json& j) { j["normalizer"]["news"] = 1; }),
              HasSubstr("normalizer: the key \"news\" is not supported"));
  EXPECT_THAT(said_of("gpt2", [](Json& j) { j["news"] = 1; }), HasSubstr("the key \"news\" is not supported"));
  EXPECT_THAT(said_of("llama2", [](Json& j) { j["decoder"]["decoders"][3]["stop"] = 1; }),
              HasSubstr("decoder.decoders[3].stop"));
  EXPECT_THAT(said_of("llama3",
                      [](Json& j) {
                        std::swap(j["pre_tokenizer"]["pretokenizers"][0], j["pre_tokenizer"]["pretokenizers"][1]);
                      }),
              HasSubstr("pre_tokenizer.pretokenizers[0]: ByteLevel is supported only as the last"));
}

// There the reference's notion of "first" depends on how it keeps offsets.
TEST(TokenizerJson, RefusesAPrefixForTheFirstAfterReplacedRuns) {
  EXPECT_THAT(said_of("mistral",
                      [](Json& j) {
                        j["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "ab"}}}, {"content", "c"}};
                      }),
              HasSubstr("\"first\" is not supported after a Replace of several characters (byte "));
}

TEST(TokenizerJson, SaysWhatIsWrongInsideAndWhere) {
  EXPECT_THAT(said_of("gpt2",
                      [](Json& j) {
                        j["model"]["merges"][7] = {"Ġ", "nothing"};
                      }),
              HasSubstr("merge 7 of \"Ġ\" and \"nothing\": \"nothing\" is not in the vocabulary (byte "));
  EXPECT_THAT(said_of("gpt2", [](Json& j) { j["model"]["merges"][7] = "a b c"; }),
              HasSubstr("\"a b c\" is not two tokens"));
  EXPECT_THAT(said_of("gpt2", [](Json& j) { j["model"]["merges"][7] = {"a"}; }),
              HasSubstr("a merge has two tokens, not 1"));
  EXPECT_THAT(said_of("gpt2", [](Json& j) { j["model"]["vocab"]["a"] = 5; }), HasSubstr("have the same id 5"));
  EXPECT_THAT(said_of("gpt2", [](Json& j) { j["model"]["vocab"]["a"] = 99999999; }),
              HasSubstr("but there are only 900 tokens"));
  EXPECT_THAT(said_of("gpt2", [](Json& j) { j["model"]["vocab"]["a"] = -1; }), HasSubstr("must be whole"));
  EXPECT_THAT(said_of("llama2", [](Json& j) { j["model"]["unk_token"] = "<none>"; }),
              HasSubstr("model.unk_token: \"<none>\""));
  EXPECT_THAT(said_of("qwen", [](Json& j) { j["added_tokens"][1]["id"] = 5000; }),
              HasSubstr("but the format gives it"));
  EXPECT_THAT(said_of("qwen", [](Json& j) { j["added_tokens"][1]["content"] = ""; }),
              HasSubstr("added_tokens[1].content: a token must have letters"));
  EXPECT_THAT(said_of("qwen", [](Json& j) { j["added_tokens"][1].erase("special"); }),
              HasSubstr("added_tokens[1]: the key \"special\" is missing"));
  EXPECT_THAT(said_of("llama2", [](Json& j) { j["post_processor"]["special_tokens"] = Json::object(); }),
              HasSubstr("which special_tokens lacks"));
  EXPECT_THAT(said_of("llama2", [](Json& j) { j["post_processor"]["special_tokens"]["<s>"]["ids"][0] = 5000; }),
              HasSubstr("stands for the token 5000, which there is not"));
  EXPECT_THAT(said_of("llama2", [](Json& j) { j["post_processor"]["single"] = Json::array(); }),
              HasSubstr("holds the text 0 times"));
  EXPECT_THAT(said_of("mistral", [](Json& j) { j["pre_tokenizer"]["replacement"] = "ab"; }),
              HasSubstr("exactly one character"));
  EXPECT_THAT(said_of("gpt2", [](Json& j) { j.erase("model"); }), HasSubstr("\"model\" is missing"));
}

TEST(TokenizerJson, SaysWhichPartOfAPatternItRefuses) {
  const auto said = [](const std::string& pattern) {
    return said_of("llama3", [&](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern; });
  };
  EXPECT_THAT(said("ab\\w"),
              AllOf(HasSubstr("pretokenizers[0].pattern"), HasSubstr("\\w is not supported (character 2 of")));
  EXPECT_THAT(said("^a"), HasSubstr("'^' is not supported"));
  EXPECT_THAT(said("[a[b]]"), HasSubstr("[ inside [...]"));
  EXPECT_THAT(said("(?<name>a)"), HasSubstr("this kind of group"));
  EXPECT_THAT(said("a++"), HasSubstr("a quantifier after a quantifier"));
  EXPECT_THAT(said("a{,3}"), HasSubstr("'{' must begin"));
  EXPECT_THAT(said("a*"), HasSubstr("matches the empty text"));
  EXPECT_THAT(said("(a"), HasSubstr("character"));
  EXPECT_THAT(said("\\p{Nonsense}"), HasSubstr("character"));
}

TEST(TokenizerJson, EveryCutIsRefused) {
  const std::string text = read_all(tokenizer_fixtures() / "mistral.json");
  for (std::size_t length = 0; length < text.size(); length += 97)
    EXPECT_THROW(parse_tokenizer_json(std::string_view(text).substr(0, length), "t.json"), formats::FormatError)
        << length;
}

}  // namespace
}  // namespace trireme::data
