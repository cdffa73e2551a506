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
  for (const std::string& name : fixture_names()) {
    if (name == "odd") continue;  // merges in the form of old files
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
  EXPECT_THAT(said_of("llama3", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["type"] = "UnicodeScripts"; }),
              AllOf(HasSubstr("t.json: pre_tokenizer.pretokenizers[0]: the type \"UnicodeScripts\" is not supported"),
                    HasSubstr("(byte "), HasSubstr("ByteLevel, Split, Metaspace, BertPreTokenizer")));
  EXPECT_THAT(said_of("qwen", [](Json& j) { j["normalizer"]["type"] = "ByteLevel"; }),
              HasSubstr("normalizer: the type \"ByteLevel\""));
  EXPECT_THAT(said_of("gpt2", [](Json& j) { j["decoder"]["type"] = "CTC"; }), HasSubstr("decoder: the type"));
  EXPECT_THAT(said_of("gpt2", [](Json& j) { j["post_processor"]["type"] = "Other"; }),
              HasSubstr("post_processor: the type"));
  EXPECT_THAT(said_of("gpt2", [](Json& j) { j["model"]["type"] = "WordLevel"; }),
              HasSubstr("model: the type \"WordLevel\""));
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

TEST(TokenizerJson, SaysWhatIsWrongInOtherModels) {
  EXPECT_THAT(said_of("bert", [](Json& j) { j["model"]["unk_token"] = "<none>"; }),
              HasSubstr("model.unk_token: \"<none>\" is not in the vocabulary"));
  EXPECT_THAT(said_of("bert", [](Json& j) { j["model"]["byte_fallback"] = true; }),
              HasSubstr("model: the key \"byte_fallback\" is not supported"));
  EXPECT_THAT(said_of("bert", [](Json& j) { j["model"]["type"] = "Unigram"; }),
              HasSubstr("model.vocab: a list [...] of tokens and scores is expected"));
  EXPECT_THAT(said_of("bert", [](Json& j) { j["model"]["type"] = "BPE"; }), HasSubstr("merges is missing"));
  EXPECT_THAT(said_of("bert", [](Json& j) { j["normalizer"].erase("lowercase"); }),
              HasSubstr("normalizer: the key \"lowercase\" is missing"));
  EXPECT_THAT(said_of("t5", [](Json& j) { j["model"]["type"] = "WordPiece"; }),
              HasSubstr("model.vocab: an object {...} of tokens and ids is expected"));
  EXPECT_THAT(said_of("t5", [](Json& j) { j["model"]["unk_id"] = 5000; }),
              HasSubstr("model.unk_id: 5000 is no token; there are"));
  EXPECT_THAT(said_of("t5", [](Json& j) { j["model"]["vocab"][7].push_back(1); }),
              HasSubstr("a token has a text and a score, not 3 values"));
  EXPECT_THAT(said_of("t5", [](Json& j) { j["model"]["vocab"][7][0] = j["model"]["vocab"][6][0]; }),
              HasSubstr("is there twice"));
  EXPECT_THAT(said_of("t5", [](Json& j) { j["normalizer"]["normalizers"][0]["precompiled_charsmap"] = "A"; }),
              HasSubstr("normalizer.normalizers[0]: precompiled_charsmap: is no base64"));
  EXPECT_THAT(said_of("t5", [](Json& j) { j["normalizer"]["normalizers"][0]["precompiled_charsmap"] = "AAEAAAAA"; }),
              HasSubstr("a trie of 256 bytes in 6 bytes"));
  EXPECT_THAT(said_of("t5", [](Json& j) { j["pre_tokenizer"]["prepend_scheme"] = "first"; }),
              HasSubstr("\"first\" is not supported after"));
  EXPECT_THAT(said_of("wordpiece", [](Json& j) { j["post_processor"]["sep"] = Json::array({"</s>"}); }),
              HasSubstr("post_processor.sep: a token and its id are expected"));
  EXPECT_THAT(said_of("wordpiece", [](Json& j) { j["post_processor"]["sep"][1] = 5000; }),
              HasSubstr("stands for the token 5000, which there is not"));
}

// Files of before 2020 do not say it.
TEST(TokenizerJson, TellsAModelByItsMembers) {
  for (const std::string name : {"gpt2", "bert", "t5"}) {
    Json json = read_fixture(name + ".json");
    json["model"].erase("type");
    EXPECT_EQ(Tokenizer(parse_tokenizer_json(written(json), name), name).hash(), fixture_tokenizer(name)->hash());
  }
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
