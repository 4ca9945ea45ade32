// llama.cpp's chat parser as C functions, for `llama_cpp.py`. As from the server, a client receives the differences
// between successive messages.

#include "chat.h"
#include "log.h"

struct reply {
    common_chat_session session;
    common_chat_msg message = session.msg();
    common_chat_msg told;
    std::string printed;
};

static std::string error;

static void take(common_chat_msg & told, const common_chat_msg_diff & diff, size_t & arguments) {
    told.content += diff.content_delta;
    told.reasoning_content += diff.reasoning_content_delta;
    if (diff.tool_call_index != std::string::npos) {
        told.tool_calls.resize(std::max(told.tool_calls.size(), diff.tool_call_index + 1));
        auto & call = told.tool_calls[diff.tool_call_index];
        call.arguments += diff.tool_call_delta.arguments;
        arguments += diff.tool_call_delta.arguments.size();
        if (!diff.tool_call_delta.name.empty()) {
            call.name = diff.tool_call_delta.name;  // the whole name, even if only its end is new
        }
    }
}

static bool is_thinking(const common_chat_session & session) {
    const auto & tag = session.thinking_start_tag();
    const auto at = session.generation_prompt().rfind(tag);
    return !tag.empty() && at != std::string::npos &&
           session.generation_prompt().find_first_not_of(" \n", at + tag.size()) == std::string::npos;
}

extern "C" {

const char * failure() { return error.c_str(); }

// Begins a reply to a question with these tools, with a model's chat template. Returns null on failure. Reasoning that
// the prompt opens is closed immediately.
reply * opened(const char * source, const char * tools) try {
    static std::map<std::string, common_chat_templates_ptr> known;
    common_log_set_verbosity_thold(-1);
    auto & templates = known[source];
    if (!templates) {
        templates = common_chat_templates_init(nullptr, source);
    }
    common_chat_msg question;
    question.role = "user";
    question.content = "x";
    common_chat_templates_inputs inputs;
    inputs.messages = { question };
    inputs.tools = common_chat_tools_parse_oaicompat(common_json::parse(tools));
    inputs.parallel_tool_calls = true;
    inputs.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
    inputs.enable_thinking = false;
    common_chat_session session(templates.get(), nullptr, inputs);
    if (is_thinking(session) && !session.thinking_end_tags().empty()) {
        session.feed(common_chat_input(session.thinking_end_tags().front()));
    }
    return new reply{ std::move(session) };
} catch (const std::exception & raised) {
    error = raised.what();
    return nullptr;
}

// Returns the beginning of the reply that is in the prompt.
const char * begun(reply * reply) { return reply->session.generation_prompt().c_str(); }

// Feeds a delta. Returns the number of new bytes of arguments, or -1 on failure.
long fed(reply * reply, const char * delta, bool last) try {
    const auto input = common_chat_input(delta);
    auto message = last ? reply->session.finish(input) : reply->session.feed(input);
    size_t arguments = 0;
    for (const auto & diff : common_chat_msg_diff::compute_diffs(reply->message, message)) {
        take(reply->told, diff, arguments);
    }
    reply->message = std::move(message);
    return arguments;
} catch (const std::exception & raised) {
    error = raised.what();
    return -1;
}

// Returns everything that the client has received, as JSON.
const char * known(reply * reply) {
    reply->printed = reply->told.to_json_oaicompat().dump();
    return reply->printed.c_str();
}

void closed(reply * reply) { delete reply; }

}
