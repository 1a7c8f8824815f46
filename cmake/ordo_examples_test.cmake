# Installs ordo into a folder of the build tree and builds and runs examples/ against it, the way a user's
# project would: only find_package(ordo) and what its configuration finds.
if(EXISTS "${PROJECT_SOURCE_DIR}/examples/CMakeLists.txt")
  set(stage "${PROJECT_BINARY_DIR}/stage")
  add_test(NAME install COMMAND "${CMAKE_COMMAND}" --install "${PROJECT_BINARY_DIR}" --prefix "${stage}")
  set_tests_properties(install PROPERTIES LABELS build RESOURCE_LOCK build_tree FIXTURES_SETUP ordo_stage)

  string(REPLACE ";" "\\;" prefixes "${stage};${CMAKE_PREFIX_PATH}")
  set(settings "-DCMAKE_PREFIX_PATH=${prefixes}" "-DCMAKE_BUILD_TYPE=${CMAKE_BUILD_TYPE}"
               "-DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}")
  if(Kokkos_DIR)
    list(APPEND settings "-DKokkos_DIR=${Kokkos_DIR}")
  endif()
  add_test(
    NAME examples
    COMMAND
      "${CMAKE_CTEST_COMMAND}" --build-and-test "${PROJECT_SOURCE_DIR}/examples" "${PROJECT_BINARY_DIR}/examples"
      --build-generator "${CMAKE_GENERATOR}" --build-options ${settings}
      "-DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}" --test-command "${CMAKE_CTEST_COMMAND}" --output-on-failure)
  set_tests_properties(examples PROPERTIES LABELS build FIXTURES_REQUIRED ordo_stage PROCESSORS 2 TIMEOUT 900)
endif()
