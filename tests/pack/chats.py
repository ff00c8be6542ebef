"""Records of conversations, in the forms of OpenAI and of LLaVA."""


def chat(*contents, **fields):
    return {"messages": messages(*contents)} | fields


def messages(*contents):
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]


def question(asked, answered="Ok.", **fields):
    return chat(asked, answered, **fields)


def llava(asked, answered="Ok.", **fields):
    return {"conversations": turns(asked, answered)} | fields


def turns(*texts):
    return [{"from": ("human", "gpt")[i % 2], "value": text} for i, text in enumerate(texts)]


def text(value):
    return {"type": "text", "text": value}
