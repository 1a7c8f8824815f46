# Every header compiles alone, and twice in one translation unit; all of them link into one program, so a
# function that is neither inline nor a template is a duplicate symbol. The test builds that program:
# only headers that changed are compiled again.
file(GLOB_RECURSE ordo_headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/include"
     "${PROJECT_SOURCE_DIR}/include/ordo/*.hpp" "${PROJECT_SOURCE_DIR}/include/ordo/*.h")
if(NOT ORDO_ENABLE_CUDA)
  list(FILTER ordo_headers EXCLUDE REGEX "^ordo/cuda/")
endif()
if(NOT ORDO_ENABLE_MPI)
  list(FILTER ordo_headers EXCLUDE REGEX "^ordo/comm/mpi_")
endif()
if(NOT APPLE)
  list(FILTER ordo_headers EXCLUDE REGEX "^ordo/metal/")
endif()

if(ordo_headers)
  set(folder "${PROJECT_BINARY_DIR}/header_check")
  file(CONFIGURE OUTPUT "${folder}/main.cpp" CONTENT "int main() {}\n")
  set(sources "${folder}/main.cpp")
  foreach(header IN LISTS ordo_headers)
    string(REGEX REPLACE "[^A-Za-z0-9]" "_" name "${header}")
    # Twice: the second one does nothing if the include guard is right.
    file(CONFIGURE OUTPUT "${folder}/${name}.cpp" CONTENT "#include <${header}>\n#include <${header}>\n")
    list(APPEND sources "${folder}/${name}.cpp")
  endforeach()
  ordo_device_language(${sources})
  add_executable(ordo_header_check EXCLUDE_FROM_ALL ${sources})
  target_link_libraries(ordo_header_check PRIVATE ordo::ordo $<TARGET_NAME_IF_EXISTS:ordo_mpi>)
  target_compile_options(ordo_header_check PRIVATE -O0 -g0 -Werror)
  set_target_properties(ordo_header_check PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${folder}")
  ordo_warnings(ordo_header_check)

  add_test(NAME headers COMMAND "${CMAKE_COMMAND}" --build "${PROJECT_BINARY_DIR}" --target ordo_header_check)
  set_tests_properties(headers PROPERTIES LABELS build RESOURCE_LOCK build_tree PROCESSORS 2 TIMEOUT 900)
endif()
