# The installed package: find_package(ordo) gives ordo::ordo with its dependencies and its correctness flags.
if(NOT PROJECT_IS_TOP_LEVEL AND NOT ORDO_INSTALL)
  return()
endif()
include(CMakePackageConfigHelpers)
set(ordo_package "${CMAKE_INSTALL_LIBDIR}/cmake/ordo")

# A header-only package does not depend on the machine's word size.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/ordoConfigVersion.cmake" COMPATIBILITY SameMinorVersion
                                 ARCH_INDEPENDENT)
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/ordoConfig.cmake.in" "${PROJECT_BINARY_DIR}/ordoConfig.cmake"
                              INSTALL_DESTINATION "${ordo_package}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(TARGETS ordo EXPORT ordoTargets)
if(ORDO_ENABLE_MPI)
  install(TARGETS ordo_mpi EXPORT ordoTargets)
endif()
install(EXPORT ordoTargets NAMESPACE ordo:: DESTINATION "${ordo_package}")
install(FILES "${PROJECT_BINARY_DIR}/ordoConfig.cmake" "${PROJECT_BINARY_DIR}/ordoConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/FindxxHash.cmake" "${PROJECT_SOURCE_DIR}/cmake/Findzstd.cmake"
        DESTINATION "${ordo_package}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
