# zstd::libzstd under one name: zstd's own CMake configuration names its target differently by version
# and build, and some distributions leave it out.
find_package(PkgConfig QUIET)
if(PKG_CONFIG_FOUND)
  pkg_check_modules(PC_zstd QUIET libzstd)
endif()
find_path(zstd_INCLUDE_DIR zstd.h HINTS ${PC_zstd_INCLUDE_DIRS})
find_library(zstd_LIBRARY zstd HINTS ${PC_zstd_LIBRARY_DIRS})
set(zstd_VERSION "${PC_zstd_VERSION}")
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  zstd
  REQUIRED_VARS zstd_LIBRARY zstd_INCLUDE_DIR
  VERSION_VAR zstd_VERSION)
if(zstd_FOUND AND NOT TARGET zstd::libzstd)
  add_library(zstd::libzstd UNKNOWN IMPORTED)
  set_target_properties(zstd::libzstd PROPERTIES IMPORTED_LOCATION "${zstd_LIBRARY}"
                                                  INTERFACE_INCLUDE_DIRECTORIES "${zstd_INCLUDE_DIR}")
endif()
mark_as_advanced(zstd_INCLUDE_DIR zstd_LIBRARY)
