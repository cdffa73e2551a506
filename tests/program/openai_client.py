"""The official client against a server: openai_client.py URL KEY MODEL. The model's tokens are bytes below 96."""
import concurrent.futures
import sys
import urllib.request

import openai

url, key, model = sys.argv[1:]
client = openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0)


def metric(name):
    request = urllib.request.Request(url + "/metrics", headers={"Authorization": "Bearer " + key})
    for line in urllib.request.urlopen(request).read().decode().splitlines():
        if line.startswith(name + " "):
            return float(line.split()[-1])
    raise AssertionError(name)


def refused(kind, code, call):
    try:
        call()
    except kind as error:
        assert error.code == code, error
        return
    raise AssertionError("was taken")


assert [each.id for each in client.models.list()] == [model]
assert client.models.retrieve(model).id == model

talk = dict(model=model, messages=[{"role": "system", "content": "BE BRIEF"}, {"role": "user", "content": "HI"}])
whole = client.chat.completions.create(**talk, max_tokens=12, temperature=0, logprobs=True, top_logprobs=2)
choice = whole.choices[0]
assert choice.message.role == "assistant" and choice.finish_reason in ("stop", "length")
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
assert len(choice.logprobs.content) >= 1 and len(choice.logprobs.content[0].top_logprobs) == 2
assert "".join(each.token for each in choice.logprobs.content) == choice.message.content

text, usages, finishes = "", 0, []
for chunk in client.chat.completions.create(**talk, max_tokens=12, temperature=0, stream=True,
                                            stream_options={"include_usage": True}):
    if chunk.usage:
        usages += 1
        assert not chunk.choices and chunk.usage.completion_tokens == whole.usage.completion_tokens
        continue
    text += chunk.choices[0].delta.content or ""
    finishes += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
assert text == choice.message.content and usages == 1 and finishes == [choice.finish_reason]

free = client.completions.create(model=model, prompt="ABC", max_tokens=20, temperature=0, extra_body={"ignore_eos": True})
stop = free.choices[0].text[5]
cut = client.completions.create(model=model, prompt="ABC", max_tokens=20, temperature=0, stop=[stop],
                                extra_body={"ignore_eos": True})
assert cut.choices[0].text == free.choices[0].text.split(stop)[0] and cut.choices[0].finish_reason == "stop"
twice = [client.completions.create(model=model, prompt="A", max_tokens=9, seed=5, n=2) for _ in range(2)]
assert [c.text for c in twice[0].choices] == [c.text for c in twice[1].choices]

refused(openai.NotFoundError, "model_not_found", lambda: client.completions.create(model="other", prompt="A"))
refused(openai.BadRequestError, "context_length_exceeded",
        lambda: client.completions.create(model=model, prompt="A", max_tokens=100000))
refused(openai.BadRequestError, "unsupported_parameter",
        lambda: client.chat.completions.create(**talk, response_format={"type": "json_object"}))
refused(openai.AuthenticationError, "invalid_api_key",
        lambda: openai.OpenAI(base_url=url + "/v1", api_key="wrong", max_retries=0).models.list())

stream = client.completions.create(model=model, prompt="A", max_tokens=40, stream=True)
next(iter(stream))
stream.close()  # cancelled

alone = [client.completions.create(model=model, prompt=f"N {i}", max_tokens=56, seed=i, extra_body={"ignore_eos": True})
         for i in range(64)]
before = metric("trireme_serve_steps_total")
with concurrent.futures.ThreadPoolExecutor(64) as pool:
    together = list(pool.map(lambda i: client.completions.create(model=model, prompt=f"N {i}", max_tokens=56, seed=i,
                                                                 extra_body={"ignore_eos": True}), range(64)))
steps = metric("trireme_serve_steps_total") - before
assert [a.choices[0].text for a in alone] == [a.choices[0].text for a in together]
assert steps < 64 * 56 / 2, steps
print(f"openai {openai.__version__}: 64 requests of 56 tokens at once took {steps:.0f} steps")
