# One CPU backend, built for the machine that builds it.
#
# Upstream's GGML_NATIVE does that, but refuses to go together with run-time loaded backends on
# x86: the loaded library is asked whether the CPU has what it was built for, and that question
# is made from the explicit feature switches. So ask the compiler what `-march=native` means here
# and set those switches. Other architectures take GGML_NATIVE as it is.
set(GGML_NATIVE ON)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64|i.86)$")
    set(GGML_NATIVE OFF)
    execute_process(
        COMMAND ${CMAKE_COMMAND} -E echo ""
        COMMAND ${CMAKE_CXX_COMPILER} -march=native -dM -E -x c++ -
        OUTPUT_VARIABLE host_macros
        RESULT_VARIABLE host_macros_status
        ERROR_VARIABLE host_macros_error)
    if(NOT host_macros_status EQUAL 0)
        message(FATAL_ERROR "The compiler does not know this CPU: ${host_macros_error}")
    endif()

    # switch = every macro that the switch's compiler flags turn on
    set(host_switches
        GGML_SSE42=__SSE4_2__
        GGML_AVX=__AVX__
        GGML_AVX2=__AVX2__
        GGML_F16C=__F16C__
        GGML_FMA=__FMA__
        GGML_BMI2=__BMI2__
        GGML_AVX_VNNI=__AVXVNNI__
        GGML_AVX512=__AVX512F__,__AVX512CD__,__AVX512VL__,__AVX512DQ__,__AVX512BW__
        GGML_AVX512_VBMI=__AVX512VBMI__
        GGML_AVX512_VNNI=__AVX512VNNI__
        GGML_AVX512_BF16=__AVX512BF16__
        GGML_AMX_TILE=__AMX_TILE__
        GGML_AMX_INT8=__AMX_INT8__
        GGML_AMX_BF16=__AMX_BF16__)
    set(LLAMA_AI_CPU_FEATURES "")
    foreach(entry IN LISTS host_switches)
        string(REPLACE "=" ";" pair "${entry}")
        list(GET pair 0 switch)
        list(GET pair 1 macros)
        string(REPLACE "," ";" macros "${macros}")
        set(${switch} ON)
        foreach(macro IN LISTS macros)
            if(NOT host_macros MATCHES "#define ${macro} ")
                set(${switch} OFF)
            endif()
        endforeach()
        if(${switch})
            list(APPEND LLAMA_AI_CPU_FEATURES ${switch})
        endif()
    endforeach()
    message(STATUS "CPU features: ${LLAMA_AI_CPU_FEATURES}")
endif()
