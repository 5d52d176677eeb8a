#include "check.h"
#include "prefix_cache.h"

using llama_ai::same_objects_written_differently;
using llama_ai::sorted_objects;

int main() {
    const std::string one = R"(You may call {"name":"f","args":{"a":1,"b":"}{"}} and
{"type":"function","function":{"name":"g","x":[1,2]}}.)";
    const std::string swapped = R"(You may call {"args":{"b":"}{","a":1},"name":"f"} and
{"type": "function", "function": {"x": [1,2], "name": "g"}}.)";
    std::vector<std::string> raw;
    CHECK(sorted_objects(one, raw).size() == 2 && raw.size() == 2);
    CHECK(raw[0] == R"({"name":"f","args":{"a":1,"b":"}{"}})");
    CHECK(same_objects_written_differently(one, swapped));
    CHECK(!same_objects_written_differently(one, one));
    // The same tools in another order are the same tools.
    CHECK(same_objects_written_differently(R"({"a":1,"b":2} {"c":3,"d":4})",
                                           R"({"c":3,"d":4} {"a":1,"b":2})"));
    // Another value, another tool, a list in another order: not the same.
    CHECK(!same_objects_written_differently(R"({"a":1,"b":2})", R"({"b":3,"a":1})"));
    CHECK(!same_objects_written_differently(R"({"a":1,"b":2})", R"({"b":2,"a":1} {"c":1,"d":2})"));
    CHECK(!same_objects_written_differently(R"({"a":[1,2],"b":2})", R"({"b":2,"a":[2,1]})"));
    // Text that only looks like it.
    CHECK(!same_objects_written_differently("no objects", "none here"));
    raw.clear();
    CHECK(sorted_objects("{ {{ \"a\": {x: 1} } { \"unclosed", raw).empty());
    return 0;
}
