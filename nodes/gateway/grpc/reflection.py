"""The reflection service: clients without stubs ask what there is, and how to call it."""

from __future__ import annotations

from typing import Any

import grpc

from nodes.gateway.grpc.messages import POOL, SERVICES, Unreadable, message


async def reflect(requests: Any, context: Any) -> None:
    """Of `ServerReflection/ServerReflectionInfo`, in both of its packages: one answer to each
    request. Ends with the client's stream."""
    async for request in requests:
        if isinstance(request, Unreadable):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "this is no request of reflection"
            )
        await context.write(answer(request))


def answer(request: Any) -> Any:
    """A `ServerReflectionResponse` of the package of the request."""
    package = request.DESCRIPTOR.file.package
    response = message(f"{package}.ServerReflectionResponse")(
        valid_host=request.host, original_request=request
    )
    asked = request.WhichOneof("message_request")
    try:
        if asked == "list_services":
            for name in SERVICES:
                response.list_services_response.service.add(name=name)
        elif asked == "file_by_filename":
            _add_file(response, POOL.FindFileByName(request.file_by_filename))
        elif asked == "file_containing_symbol":
            _add_file(response, POOL.FindFileContainingSymbol(request.file_containing_symbol))
        elif asked == "all_extension_numbers_of_type":
            kind = POOL.FindMessageTypeByName(request.all_extension_numbers_of_type)
            response.all_extension_numbers_response.base_type_name = kind.full_name
        else:
            raise KeyError(asked)
    except KeyError:
        response.error_response.error_code = grpc.StatusCode.NOT_FOUND.value[0]
        response.error_response.error_message = "there is no such file, symbol or extension"
    return response


def _add_file(response: Any, file: Any) -> None:
    """None of the files imports another one."""
    response.file_descriptor_response.file_descriptor_proto.append(file.serialized_pb)
