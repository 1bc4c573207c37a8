import uuid
from functools import partial

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from millrace.contrib.celery import AsyncResult
from shop.models import Order
from shop.tasks import send_receipt


@csrf_exempt
@require_POST
@transaction.atomic
def create_order(request: HttpRequest) -> JsonResponse:
    order = Order.objects.create(product=request.POST["product"])
    task_id = str(uuid.uuid4())
    transaction.on_commit(partial(send_receipt.apply_async, (order.pk,), task_id=task_id))
    return JsonResponse({"order": order.pk, "task": task_id})


def read_task(request: HttpRequest, task_id: str) -> JsonResponse:
    result = AsyncResult(task_id)
    return JsonResponse({"status": result.status, "receipt": result.result if result.successful() else None})


urlpatterns = [path("orders/", create_order), path("tasks/<str:task_id>/", read_task)]
