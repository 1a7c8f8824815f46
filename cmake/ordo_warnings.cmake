# Warnings for ordo's own targets. They never travel to users: everything here is PRIVATE.
# Mistakes that change meaning are errors; -DORDO_WARNINGS_AS_ERRORS=ON makes every warning one.
function(ordo_warnings target)
  set(host_warnings -Wall -Wextra -Wpedantic -Werror=return-type -Werror=vla -Werror=reorder
                    -Werror=delete-non-virtual-dtor -Werror=uninitialized)
  # g++ 12 sees overlaps in its own std::string and uninitialized vectors in its own intrinsics.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    list(APPEND host_warnings -Wno-restrict -Wno-maybe-uninitialized)
  endif()
  if(ORDO_WARNINGS_AS_ERRORS)
    list(APPEND host_warnings -Werror)
  endif()
  # -Wpedantic refuses the line directives that nvcc writes; its front end knows no "pragma GCC unroll" (1675), which
  # is for the host's compiler.
  target_compile_options(
    ${target} PRIVATE "$<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang,AppleClang>:${host_warnings}>"
                      "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra;--diag-suppress=1675>")
endfunction()

# This machine's instructions for ordo's own programs. Tuning: no bit depends on it.
function(ordo_native target)
  if(ORDO_NATIVE)
    target_compile_options(
      ${target} PRIVATE "$<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang,AppleClang>:-march=native>")
  endif()
endfunction()
